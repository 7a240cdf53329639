"""Tests that share one server; it ends with the last of them, because Ray computes while idle."""
