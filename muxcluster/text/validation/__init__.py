"""From request bodies to checked values; every error names the field."""
