"""The processes that clients reach: HTTP ingresses and the batch service, as Ray runs them."""
