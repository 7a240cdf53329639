"""Units with more models than memory: an owner process a model, made to wake it, ended to park."""
