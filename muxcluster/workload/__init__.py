"""Streams of requests: arrivals, popularity, lengths, readers of real traces, one file format."""
