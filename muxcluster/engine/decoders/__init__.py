"""Decoders that replace transformers' layers of the Llama kind by fewer operators."""
