"""Batch jobs in the simulator, alone or beside interactive requests."""
