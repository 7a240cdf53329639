"""What is on this machine and in files of other servers: GPUs, models, their commands."""
