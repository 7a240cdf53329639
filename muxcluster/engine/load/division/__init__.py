"""Tensor parallelism of weights: which part of a model a rank holds."""
