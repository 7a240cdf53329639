"""Execution of jobs: forward, sampling, results, on the CPU."""
