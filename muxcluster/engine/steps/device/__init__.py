"""Execution of jobs on a GPU: launched without waiting, decode steps recorded as CUDA graphs."""
