"""Sphinx's settings: Markdown by MyST. `make docs` builds with warnings as errors."""

from importlib.metadata import version as version_of

project = "muxcluster"
copyright = "the muxcluster authors"
release = version = version_of("muxcluster")
extensions = ["myst_parser"]
exclude_patterns = ["_build", "generate"]
html_theme = "furo"
html_title = "muxcluster"
# Headings get the anchors that GitHub gives them.
myst_heading_anchors = 4
