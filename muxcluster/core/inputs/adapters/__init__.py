"""LoRA adapters: their files, and what processes tell each other of them."""
