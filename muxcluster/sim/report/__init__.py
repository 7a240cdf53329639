"""What a simulation amounts to, as numbers and as a timeline of jobs."""
