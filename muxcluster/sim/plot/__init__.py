"""Plots of comparisons and of jobs over time."""
