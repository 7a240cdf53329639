"""SM partitions of a GPU: shares held by processes (MPS) or by green contexts."""
