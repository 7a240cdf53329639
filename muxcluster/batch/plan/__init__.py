"""Plans of batch jobs: the order of their lines, and when each starts."""
