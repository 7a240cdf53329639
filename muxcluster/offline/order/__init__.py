"""Orders of a batch job: BatchLLM's plan and the orders it is compared with."""
