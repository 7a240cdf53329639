"""The pages of the documentation, and the sources that generated pages are made from."""

from pathlib import Path

from docs.generate.site import DOCS, written_pages
from tests.conftest import ROOT


def all_pages() -> list[Path]:
    """Every page that a reader sees."""
    generated = [*(DOCS / "reference").glob("*.md"), *(DOCS / "results").glob("*.md")]
    return [*written_pages(), *sorted(generated)]


def hand_written() -> list[Path]:
    """Pages and templates in which a figure could be typed by hand."""
    templates = sorted((DOCS / "generate").rglob("*.md"))
    return [*written_pages(), *templates]


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()
