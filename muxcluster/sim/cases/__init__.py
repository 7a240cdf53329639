"""Comparisons: systems under loads, and sweeps of many cases."""
