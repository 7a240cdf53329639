"""`muxcluster top` and `trace`: what a running server does, and did with one request."""
