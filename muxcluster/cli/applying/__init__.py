"""What `muxcluster up` shows before it changes a cluster."""
