"""Requests of the batch commands to a server, and their output."""
