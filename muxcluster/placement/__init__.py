"""Which models share which GPUs: hardware and model numbers, cost model, planner, plan."""
