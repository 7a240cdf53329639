"""The OpenAI HTTP surface: requests in, text out, over any `Backend`."""
