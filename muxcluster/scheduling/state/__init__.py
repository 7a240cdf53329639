"""The sequences of each model as arrays, its waiting requests and its measured load."""
