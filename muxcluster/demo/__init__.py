"""The demonstration: small random models, a burst of requests, a table and a picture."""
