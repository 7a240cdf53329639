"""The engine: models on the accelerator, workers, and the unit that drives them."""
