"""Output of commands: tables, sentences, pictures."""
