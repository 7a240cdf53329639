"""Pages of docs/reference, each made from the code that it describes."""
