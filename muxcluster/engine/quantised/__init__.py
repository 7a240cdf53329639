"""Linears whose weights are stored in 4 or 8 bits: read from checkpoints, or made when loaded."""
