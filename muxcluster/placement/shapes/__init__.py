"""Model shapes, from the config.json of any family or by name."""
