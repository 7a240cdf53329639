"""Which unit answers a request: links to all units, routing, recovery. No HTTP in it."""
