"""The cluster's state as plain values: what is to run, what runs, what to do next. No Ray."""
