"""The prefix tree of a batch job."""
