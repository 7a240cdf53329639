"""The OpenAI HTTP server: requests in, text out, over any `Backend`. No Ray in it."""
