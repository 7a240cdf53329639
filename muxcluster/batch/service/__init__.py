"""Runs batch jobs from their first line to their last, beside each other."""
