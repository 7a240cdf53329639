"""The controller: makes the running units equal to the planned ones."""
