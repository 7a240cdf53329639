"""Batch jobs: files and results on disk, the service that runs them, their plans."""
