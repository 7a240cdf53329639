"""The simulator: the engine's scheduler on a virtual clock, jobs timed by the cost model."""
