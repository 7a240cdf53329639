"""Batch jobs that outlive their process: input files, which lines have ended, result files."""
