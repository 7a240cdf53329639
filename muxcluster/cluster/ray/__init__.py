"""Ray itself: start, join, nodes, privacy, stop."""
