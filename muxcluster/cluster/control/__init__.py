"""The controller: keeps the units that run equal to those that are planned."""
