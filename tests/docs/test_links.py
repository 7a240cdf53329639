"""Every relative link of README and docs leads to a file, and every anchor to a heading."""

import re
import runpy
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.docs.pages import all_pages, name_of

BENCH = [ROOT / "bench" / part / "README.md" for part in ("", "gpu", "hybrid", "muxserve")]
PAGES = [*all_pages(), *BENCH]
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)


def anchor_of(heading: str) -> str:
    """The anchor that GitHub gives a heading."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    words = re.sub(r"[^\w\- ]", "", text.replace("`", "").strip().lower())
    return words.replace(" ", "-")


def anchors(path: Path) -> list[str]:
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.S | re.M)
    return [anchor_of(match[1]) for match in HEADING.finditer(text)]


def links(path: Path) -> list[str]:
    text = path.read_text(encoding="utf-8")
    # Links may have code as their words: only what stands between the backticks goes.
    text = re.sub(r"^```.*?^```|<!--.*?-->", "", text, flags=re.S | re.M)
    text = re.sub(r"`[^`\n]*`", "code", text)
    return [match[1] for match in LINK.finditer(text)]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for link in links(page):
        if re.match(r"[a-z]+:", link):
            assert link.startswith("https://"), link
            continue
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_headings_of_a_page_have_anchors_of_their_own(page: Path) -> None:
    found = anchors(page)
    assert len(found) == len(set(found))


def test_every_page_is_in_the_side_bar() -> None:
    contents = runpy.run_path(str(ROOT / "docs" / "conf.py"))["contents"]
    listed = [f"docs/{folder}/{page}.md" for _, folder, pages in contents for page in pages.split()]
    pages = {name_of(path) for path in all_pages() if ROOT / "docs" in path.parents}
    assert sorted(listed) == sorted(pages - {"docs/index.md"})


def test_anchors_are_those_of_github() -> None:
    assert anchor_of("`muxcluster batch plan`") == "muxcluster-batch-plan"
    assert (
        anchor_of("Lending (BROS's bidirectional blocks)") == "lending-bross-bidirectional-blocks"
    )
    assert anchor_of("`models[].slo`") == "modelsslo"
    assert anchor_of("Plan: `muxcluster place`") == "plan-muxcluster-place"


def test_files_of_the_drawn_path_exist() -> None:
    """The trees of "A request in twelve files" name files and folders below muxcluster/."""
    page = (ROOT / "docs" / "internals" / "request.md").read_text(encoding="utf-8")
    trees = re.findall(r"^```text\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    named = [re.findall(r"^[\s│▼]*((?:\w+/)+(?:\w+\.py)?)", each, re.MULTILINE) for each in trees]
    assert len(named[0]) > 20
    assert len(named[1]) > 8
    every = [name for names in named for name in names]
    assert [name for name in every if not (ROOT / "muxcluster" / name).exists()] == []
