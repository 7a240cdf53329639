"""Runs batch jobs from their first line to their last, several at a time."""
