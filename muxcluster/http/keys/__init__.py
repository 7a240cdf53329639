"""API keys as this process knows them, and what each request of one uses."""
