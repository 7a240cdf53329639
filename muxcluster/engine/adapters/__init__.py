"""LoRA adapters of a loaded model: their weights, and what they add to its linears."""
