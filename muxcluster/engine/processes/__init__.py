"""The unit's end of its child processes: start them, hear them, replace them."""
