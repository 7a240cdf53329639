"""Model shapes: from config.json in any family's spelling, or well known."""
