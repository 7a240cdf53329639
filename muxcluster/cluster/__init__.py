"""Everything that uses Ray: unit replicas, the controller, ingresses and the embedded cluster."""
