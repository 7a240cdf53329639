"""A batch job that runs on this machine."""
