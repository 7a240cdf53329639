"""The parts of `muxcluster batch`."""
