"""Changes of settings and versions of a running cluster."""
