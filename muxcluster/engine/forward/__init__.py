"""One forward of a model: the flattened batch and attention over the unit's KV pool."""
