"""Structured outputs: grammars that the text of a request's output must match."""
