"""A unit as a Ray actor."""
