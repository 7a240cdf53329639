"""The README stays short enough to be read."""

from tests.conftest import ROOT

MOST_LINES, MOST_BYTES = 170, 12 * 1024


def test_readme_is_short() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= MOST_LINES
    assert len(text.encode()) <= MOST_BYTES
