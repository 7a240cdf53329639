"""`muxcluster park`, `wake` and `pin`: a running server's models in and out of memory."""
