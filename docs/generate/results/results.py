"""docs/results: every template of `pages/`, filled."""

from collections.abc import Mapping
from pathlib import Path

from docs.generate.markdown import page
from docs.generate.template import filled

PAGES = Path(__file__).resolve().parent / "pages"


def result_pages() -> Mapping[str, str]:
    """Return the pages by file name."""
    return {
        path.name: page(filled(path.read_text(encoding="utf-8")))
        for path in sorted(PAGES.glob("*.md"))
    }
