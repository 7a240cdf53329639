"""How the twins compute on a CPU: plans that serve all layers of a step."""
