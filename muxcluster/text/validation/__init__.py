"""Checks request bodies; every error names the field."""
