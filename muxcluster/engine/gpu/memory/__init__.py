"""Device memory that the processes of a unit share."""
