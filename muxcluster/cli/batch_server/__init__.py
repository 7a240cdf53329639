"""What the batch commands ask of a server, and how they show it."""
