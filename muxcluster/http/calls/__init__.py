"""One call: its prompts, its admission, its choices."""
