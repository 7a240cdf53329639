"""Text in and out: tokenizers, chat templates, detokenising, stop strings, OpenAI bodies."""
