"""`muxcluster batch`: one module a command."""
