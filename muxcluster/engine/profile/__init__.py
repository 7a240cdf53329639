"""Measures how long jobs take on this machine, for the planner's cost models."""
