"""Plans for batch jobs whose prompts are all known: what is shared, and in which order to run."""
