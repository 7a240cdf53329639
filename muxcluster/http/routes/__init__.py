"""The routes, a module a resource."""
