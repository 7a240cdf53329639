"""Sphinx's settings: Markdown by MyST. `make docs` builds with warnings as errors."""

import os
import re
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any

project = "muxcluster"
copyright = "the muxcluster authors"
release = version = version_of("muxcluster")
extensions = ["myst_parser"]
exclude_patterns = ["_build", "generate"]
html_theme = "furo"
html_title = "muxcluster"
# Headings get the anchors that GitHub gives them.
myst_heading_anchors = 4

_DOCS = Path(__file__).resolve().parent
_MARKDOWN_LINK = re.compile(r"\]\((?P<path>[^)#:\s]+\.md)(?:#[^)]*)?\)")


def _outside_as_files(app: Any, name: str, source: list[str]) -> None:
    """Turn links to Markdown outside of docs, which is no page of this site, into downloads."""
    folder = Path(name).parent

    def linked(match: re.Match[str]) -> str:
        target = os.path.normpath(_DOCS / folder / match["path"])
        return match[0] if Path(target).is_relative_to(_DOCS) else f"](path:{match['path']})"

    source[0] = _MARKDOWN_LINK.sub(linked, source[0])


def setup(app: Any) -> None:
    """Connect what is done to sources before they are read."""
    app.connect("source-read", _outside_as_files)
