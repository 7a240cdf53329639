"""Attention over the KV pool, over prompts and over latents: one public kernel a module."""
