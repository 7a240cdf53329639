"""Which models of a unit have their weights on its devices, and when that changes."""
