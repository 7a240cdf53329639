"""Batch jobs on disk, which survive their process: input files, ended lines, result files."""
