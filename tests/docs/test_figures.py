"""No figure of README and docs is typed by hand: it is read from a record, or set by the code."""

import ast

import pytest

from docs.generate.claims import Said, claims_table, missed_list
from docs.generate.prose import figures
from docs.generate.records import needed, value_at
from docs.generate.results.said import SAID
from docs.generate.site import DOCS, outdated
from docs.generate.template import filled
from tests.conftest import ROOT
from tests.docs.pages import hand_written, name_of
from tests.docs.stated import STATED


@pytest.mark.slow
def test_every_generated_page_block_and_drawing_is_up_to_date() -> None:
    assert list(map(name_of, outdated())) == [], "run `make docs-generated`"


def test_figures_in_prose_are_set_by_the_code() -> None:
    known = {(stated.page, stated.figure) for stated in STATED}
    typed = {
        (name_of(path), figure.text)
        for path in hand_written()
        for figure in figures(path.read_text(encoding="utf-8"))
    }
    assert typed - known == set(), "read it from a record: docs/generate/template.py says how"
    assert known - typed == set(), "no longer in the page: remove it from tests/docs/stated.py"


@pytest.mark.parametrize("stated", STATED, ids=lambda each: f"{each.page}: {each.figure}")
def test_the_line_that_sets_a_figure_is_there(stated) -> None:
    assert stated.line in (ROOT / stated.file).read_text(encoding="utf-8")


def test_words_of_claims_hold_no_figure() -> None:
    """Reasons and names stand beside figures of the record, which may change."""
    source = DOCS / "generate" / "results" / "said.py"
    words = [
        node.value
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    assert [figure for text in words for figure in figures(text)] == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Ours is 1.86× as fast, and 75 % less.", ["1.86×", "75 %"]),
        ("It takes 12 ms, 3 to 51 % lower, up to 9.2 GiB.", ["12 ms", "51 %", "9.2 GiB"]),
        ("at 22,337 tokens/s or 4.5 req/s", ["22,337 tokens/s", "4.5 req/s"]),
        ("Llama-2-7B on Python 3.11, `30 s`, § 4.4, 8 GPUs and 32 streams", []),
        ("```\n99 % of it\n```\n<!-- 5 s -->", []),
        ("<!-- generated: x -->\n99 %\n<!-- end --> {{batch: claim x | percent}}", []),
    ],
)
def test_what_counts_as_a_figure(text: str, found: list[str]) -> None:
    assert [figure.text for figure in figures(text)] == found


def test_every_claim_in_words_is_of_a_record_and_named_once() -> None:
    """Records may lose a claim when they are renewed, but a page of none would be empty."""
    for name, said in SAID.items():
        names = [each.name for each in said]
        assert len(names) == len(set(names)), name
        if name not in ("plan_holds", "engine_fidelity"):  # not committed yet
            assert set(names) & {claim["name"] for claim in needed(name)["claims"]}, name


def test_a_field_without_a_value_is_an_error() -> None:
    assert filled("{{cluster: num_streams}}") == str(value_at("num_streams", "cluster"))
    for broken in ("{{cluster: num_stream}}", "{{no_such_record: x}}", "{{table no such}}"):
        with pytest.raises(LookupError):
            filled(broken)


def test_what_was_missed_is_found_from_the_record(monkeypatch: pytest.MonkeyPatch) -> None:
    record = {
        "claims": [
            {"name": "speed", "value": 1.5, "unit": "x", "baseline": 2.0},
            {"name": "error", "value": 0.04, "unit": "share", "baseline": 0.15},
            {"name": "new_claim", "value": 3, "unit": "files", "baseline": None},
        ]
    }
    monkeypatch.setattr("docs.generate.claims.record", lambda name: record)
    monkeypatch.setattr("docs.generate.claims.needed", lambda name: record)
    said = (Said("speed", "speed", "more", "paper", "Why."), Said("error", "error", "less"))
    assert missed_list("r", said) == "- speed: 1.50×, not 2.00× (paper). Why."
    rows = claims_table("r", said).splitlines()[2:]
    assert rows == [
        "| speed | 1.50× | 2.00× (paper) | **missed** |",
        "| error | **4 %** | 15 % (goal) | met |",
        "| new claim | **3 files** |  |  |",
    ]
