"""Batch jobs that outlive their process: input files, which lines have ended, result files.

Disk and SQLite are here and not in `offline`, whose planning touches neither.
"""
