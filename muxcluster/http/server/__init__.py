"""The HTTP server's connections: limits of heads, bodies and open calls."""
