"""Parts of `muxcluster profile`."""
