"""Dense re-batching of models that bring their own cache (BATON)."""
