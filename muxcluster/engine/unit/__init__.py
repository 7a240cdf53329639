"""The unit: the thread that turns requests into jobs, and what it is started with."""
