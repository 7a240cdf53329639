"""What every command does at its terminal: stop on signals, tell what it does, ask a server."""
