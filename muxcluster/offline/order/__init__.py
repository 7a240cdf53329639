"""Orders of a batch job: BatchLLM's plan, its rivals, and the choice among them."""
