"""Drawings of docs/images: SVG written by hand, so that equal input gives equal files anywhere."""
