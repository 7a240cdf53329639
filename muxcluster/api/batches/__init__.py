"""Batch jobs run through the same path as HTTP requests, and the routes that take them."""
