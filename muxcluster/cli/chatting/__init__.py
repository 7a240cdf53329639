"""Implementation of `muxcluster chat`."""
