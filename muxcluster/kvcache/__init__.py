"""Bookkeeping of one unit's KV pool: blocks, block tables, quotas and the prefix cache."""
