"""Pages of docs/results: a template a page, words of the claims, and tables of rows."""
