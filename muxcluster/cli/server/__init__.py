"""Implementation of `serve`, `demo` and `up`."""
