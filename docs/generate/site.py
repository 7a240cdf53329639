"""Every generated file of the documentation, and the pages that hold generated blocks."""

from collections.abc import Mapping
from pathlib import Path

from docs.generate.blocks import with_blocks
from docs.generate.drawings import architecture, chart, concepts
from docs.generate.records import ROOT
from docs.generate.reference.cli import cli_page
from docs.generate.reference.config import config_page
from docs.generate.reference.errors import errors_page
from docs.generate.reference.http import http_page
from docs.generate.reference.metrics import metrics_page
from docs.generate.reference.support import support_page
from docs.generate.results.results import result_pages

DOCS = ROOT / "docs"
_REFERENCE = {
    "cli.md": cli_page,
    "config.md": config_page,
    "errors.md": errors_page,
    "http.md": http_page,
    "metrics.md": metrics_page,
    "support.md": support_page,
}
_IMAGES = {
    "architecture.svg": architecture.architecture,
    "placement.svg": concepts.placement,
    "scheduling.svg": concepts.scheduling,
    "kv-pool.svg": concepts.kv_pool,
    "sm-shares.svg": concepts.sm_shares,
    "offline-orders.svg": concepts.offline_orders,
    "thirty-models.svg": chart.thirty_models,
}


def generated_files() -> Mapping[Path, str]:
    """Return the content of every file that is generated as a whole."""
    pages = {DOCS / "reference" / name: make() for name, make in _REFERENCE.items()}
    pages |= {DOCS / "results" / name: text for name, text in result_pages().items()}
    return pages | {DOCS / "images" / name: draw() for name, draw in _IMAGES.items()}


def written_pages() -> list[Path]:
    """Return the pages that are written by hand: those of docs, README and its neighbours."""
    whole = {DOCS / "reference", DOCS / "results"}
    pages = [
        path
        for path in sorted(DOCS.rglob("*.md"))
        if path.parent not in whole
        and not {"generate", "_build"} & set(path.relative_to(DOCS).parts)
    ]
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *pages]


def outdated() -> Mapping[Path, str]:
    """Return the new content of every file that is not what the code and the records say."""
    wanted = dict(generated_files())
    for path in written_pages():
        wanted[path] = with_blocks(path.read_text(encoding="utf-8"))
    return {
        path: text
        for path, text in wanted.items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    }
