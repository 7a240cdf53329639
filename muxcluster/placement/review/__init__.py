"""Reading of a plan: loads, headroom, idle GPUs, explanations, errors, differences."""
