"""Generator of all parts of the documentation that quote the code or a record of bench/results."""
