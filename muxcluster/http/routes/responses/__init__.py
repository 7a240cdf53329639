"""Routes of the Responses API, and responses that are made in the background."""
