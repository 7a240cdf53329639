"""Other people's clients against a real server, each in an environment of its own."""
