"""Products with quantised weights, of experts and of adapters: one public kernel a module."""
