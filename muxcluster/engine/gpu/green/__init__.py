"""Partition `green`: worker threads on green contexts of one process."""
