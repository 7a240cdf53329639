"""Partition `mps`: worker processes under an MPS daemon of our own."""
