"""Tensor parallelism: the models of one unit divided over ranks, one process a GPU."""
