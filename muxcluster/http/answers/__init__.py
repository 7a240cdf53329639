"""Response bodies and event streams in OpenAI's format."""
