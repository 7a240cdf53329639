"""Readers of workload and trace files that check every field."""
