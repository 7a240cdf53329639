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

# The side bar: caption, folder, pages. It is not in index.md, where GitHub would show it as code.
contents = (
    ("Start", "start", "status cpu gpu hosts kubernetes from-vllm"),
    (
        "Guides",
        "guides",
        "plan quantised adapters simulate openai-api other-apis embeddings images "
        "structured-outputs tools interactive-and-batch batch-jobs any-model monitoring upgrades",
    ),
    (
        "Concepts",
        "concepts",
        "placement scheduling kv-pool residency sm-shares structured-outputs speculation "
        "offline-orders",
    ),
    ("Reference", "reference", "cli config http python metrics errors support"),
    ("Operations", "operations", "failures security threat-model tenants troubleshooting"),
    (
        "Results",
        "results",
        "index thirty-models residency muxserve bros batchllm blendserve baton planner engine",
    ),
    ("Internals", "internals", "request design add-a-policy testing glossary"),
)

_DOCS = Path(__file__).resolve().parent
_MARKDOWN_LINK = re.compile(r"\]\((?P<path>[^)#:\s]+\.md)(?:#[^)]*)?\)")


def _for_sphinx(app: Any, name: str, source: list[str]) -> None:
    """Turn links to Markdown outside of docs, which is no page of this site, into downloads, and
    give the index its side bar."""
    folder = Path(name).parent

    def linked(match: re.Match[str]) -> str:
        target = os.path.normpath(_DOCS / folder / match["path"])
        return match[0] if Path(target).is_relative_to(_DOCS) else f"](path:{match['path']})"

    source[0] = _MARKDOWN_LINK.sub(linked, source[0])
    if name == "index":
        source[0] += "".join(map(_toctree, contents))


def _toctree(part: tuple[str, str, str]) -> str:
    caption, folder, pages = part
    lines = "\n".join(f"{folder}/{page}" for page in pages.split())
    return f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n{lines}\n```\n"


def setup(app: Any) -> None:
    """Connect what is done to sources before they are read."""
    app.connect("source-read", _for_sphinx)
