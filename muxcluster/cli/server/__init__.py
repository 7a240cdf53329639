"""What `serve`, `demo` and `up` run."""
