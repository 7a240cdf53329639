"""The mask process of a unit: compiles grammars and computes masks beside the forward pass."""
