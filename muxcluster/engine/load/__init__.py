"""From a model's folder to a model in memory: config, weights, checks of what was loaded."""
