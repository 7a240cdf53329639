"""Signatures with which the kernels are compiled without a GPU."""
