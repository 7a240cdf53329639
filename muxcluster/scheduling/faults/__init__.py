"""What happens to the requests of a job that failed."""
