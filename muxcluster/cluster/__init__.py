"""Ray's part: unit replicas, the controller and the embedded local cluster."""
