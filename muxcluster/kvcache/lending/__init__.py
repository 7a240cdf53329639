"""Lending of KV blocks between sequences, with their tokens kept (BROS §5)."""
