"""Rows, keys and screens of `muxcluster top`, from snapshots."""

from dataclasses import replace
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from muxcluster.cli.watching.browser import Browser
from muxcluster.cli.watching.keyboard import parsed
from muxcluster.cli.watching.rows import COLUMNS, share_bars, shares_now, sorted_models
from muxcluster.cli.watching.screen import Frame, whole
from muxcluster.core.served import ModelStats
from tests.cli.watching.snapshots import snapshot

MODELS = (
    ModelStats("chat", num_running=3, num_waiting=9, quota_blocks=200, used_blocks=50),
    ModelStats("code", num_running=5, weights="parked", order="hold", cached_blocks=7, num_lent=2),
    ModelStats("rare"),
)


def drawn(
    found: dict[str, Any] | None,
    browser: Browser | None = None,
    height: int | None = None,
    problem: str | None = None,
    width: int = 200,
) -> list[str]:
    """Lines of the screen, with spaces as one."""
    console = Console(width=width, height=height, file=StringIO(), record=True, highlight=False)
    frame = Frame("http://here", found, problem, 7.2)
    console.print(whole(frame, browser or Browser(), width, height))
    return [" ".join(line.split()) for line in console.export_text().splitlines()]


def test_the_screen_tells_units_models_latencies_and_what_is_wrong() -> None:
    found = snapshot(MODELS, {"u-0": "up", "u-1": "unreachable"})
    found["cluster"] |= {
        "nodes": [{"name": "b", "alive": False}, {"name": "a", "alive": True}],
        "unplaced": ["big"],
    }
    found["batches"] = {"by_status": {"completed": 2, "failed": 0}, "num_lines": {"completed": 8}}
    weights = {"what": "weights", "before": "resident", "after": "parked"}
    found["events"] = [{"time_s": 0.0, "unit": "u-0", "model": "code", **weights}]
    text = "\n".join(drawn(found))
    assert "http://here ready 1 of 2 nodes, 1 of 2 units up, 3 models" in text
    assert "node b is not reachable" in text and "no room for: big" in text
    assert "chat: 4 requests refused within 60 s" in text
    assert "u-0 a: 0-1 up 60% of 1000" in text
    assert "chat decode 25%, code decode 25%, rare decode 25%" in text
    assert "u-1 - unreachable -" in text
    assert "1 chat resident 3 9 0 300 ms of 200 ms 25% 40 ms of 50 ms 90% 0" in text
    assert "2 code parked, hold 5 0 0 - - - - 0" in text
    assert "batch jobs: 2 completed, 8 lines completed" in text
    assert "code on u-0: resident -> parked" in text


def test_a_server_that_does_not_answer_is_said_above_what_it_said_last() -> None:
    lines = drawn(snapshot(MODELS), problem="refused")
    assert lines[1] == "no answer for 7 s: refused; trying again"
    assert any("chat" in line for line in lines)
    assert drawn(None, problem="refused")[1].startswith("no answer for 7 s")


def test_an_opened_model_is_shown_by_unit() -> None:
    found = snapshot(MODELS, {"u-0": "up", "u-1": "loading"})
    text = "\n".join(drawn(found, Browser(opened="code")))
    assert "u-0 up parked hold 5 0 0 0 7 0 2 0" in text
    # a quarter of the SMs for a second of the half minute
    assert "u-0 decode: 0.8% of the SMs, at most 25%" in text
    assert "chat" not in text
    assert "gone is not served any more" in "\n".join(drawn(found, Browser(opened="gone")))


def test_a_hundred_models_fit_a_terminal_with_the_selected_one() -> None:
    found = snapshot([ModelStats(f"m{i:03}") for i in range(100)])
    for selected in ("m000", "m050", "m099"):
        lines = drawn(found, Browser(selected=selected), height=24)
        assert len(lines) <= 24
        assert any(f" {selected} " in line for line in lines)
        assert any("q quit" in line for line in lines)
    assert all(any(f" m{i:03} " in line for line in drawn(found)) for i in (0, 50, 99))


@pytest.mark.parametrize("width", [80, 104, 113, 121])
def test_a_narrow_terminal_shows_fewer_columns_and_cuts_no_number(width: int) -> None:
    chat = replace(MODELS[0], name="a-name-that-is-rather-long-for-a-table")
    lines = drawn(snapshot([chat, *MODELS[1:]]), height=30, width=width)
    (row,) = (line for line in lines if line.startswith("1 a-name"))
    assert "resident 3 9 0 300 ms of 200 ms 25%" in row
    assert ("40 ms of 50 ms" in row, "90%" in row) == (width > 103, width > 112)


def test_what_a_terminal_would_obey_is_no_part_of_a_name() -> None:
    text = "\n".join(drawn(snapshot([ModelStats("a\x1b[2Jb\r[red]c[/red]")])))
    assert "\x1b" not in text and "a?[2Jb?[red]c[/red]" in text


def test_models_are_sorted_by_any_column_and_unknown_values_are_last() -> None:
    models = snapshot(MODELS)["models"]
    for column in COLUMNS:
        ordered = sorted_models(models, column)
        assert sorted(each["name"] for each in ordered) == ["chat", "code", "rare"]
        values = [column.value(each) for each in ordered]
        known = [value for value in values if value is not None]
        assert known == sorted(known, reverse=column.is_largest_first)
        assert values == [*known, *[None] * (len(values) - len(known))]


def test_bars_are_a_second_each_and_the_largest_shares_are_named() -> None:
    series = [
        {"model": "a", "phase": "prefill", "shares": [0.5] * 4 + [0.0] * 4},
        {"model": "b", "phase": "decode", "shares": [0.5] * 4 + [0.25] * 4},
    ]
    assert share_bars(series) == "█▂"
    assert shares_now(series) == "b decode 25%"
    assert (share_bars([]), shares_now([])) == ("", "")


# Keys


@pytest.mark.parametrize(
    ("data", "keys"),
    [
        (b"qs", ["q", "s"]),
        (b"\x1b[A\x1b[B\r\x1b", ["up", "down", "enter", "escape"]),
        (b"\x1bOA7\x7f", ["up", "7", "backspace"]),
        (b"\x1b[1;5A\x00\xffq", ["q"]),  # control and up, and what is no key
        (b"", []),
    ],
)
def test_bytes_of_a_terminal_are_keys(data: bytes, keys: list[str]) -> None:
    assert parsed(data) == keys


def pressed(*keys: str, num_models: int = 12) -> Browser | None:
    """The state after these keys; None where they quit."""
    names = [f"m{i}" for i in range(1, num_models + 1)]
    browser = Browser()
    for key in keys:
        if not browser.press(key, names, list(reversed(names))):
            return None
    return browser


@pytest.mark.parametrize(
    ("keys", "opened"),
    [
        (["7"], "m7"),  # no model has a longer number with a 7 in front
        (["1"], None),  # as 10 may follow
        (["1", "enter"], "m1"),
        (["1", "2"], "m12"),
        (["1", "9"], None),
        (["1", "escape", "3"], "m3"),
        (["enter"], None),
        (["down", "enter"], "m12"),  # the first row
        (["down", "down", "up", "up", "down", "enter"], "m11"),
        (["down", "enter", "down"], "m11"),
        (["7", "escape"], None),
    ],
)
def test_a_model_is_opened_by_number_or_row(keys: list[str], opened: str | None) -> None:
    browser = pressed(*keys)
    assert browser is not None and browser.opened == opened


def test_q_quits_and_s_goes_round_the_columns() -> None:
    assert pressed("down", "q") is None
    browser = pressed(*["s"] * (len(COLUMNS) + 1))
    assert browser is not None and browser.column is COLUMNS[1]
    assert pressed("down", "enter", "0", num_models=0) is not None
