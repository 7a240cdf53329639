"""Tool calls: what a request asks for, how a model writes calls, and reading them from its text."""
