"""The processes at the edge: HTTP ingresses and the batch service, as Ray runs them."""
