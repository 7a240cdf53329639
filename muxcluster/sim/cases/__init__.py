"""Comparisons: which systems run under which load, and many cases at once."""
