"""Prometheus metrics and the request log."""
