"""In which order and when the lines of a batch job run."""
