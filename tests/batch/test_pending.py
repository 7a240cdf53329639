"""Pending lines: taken some at a time, neighbours where their prompts begin alike."""

import random
from pathlib import Path
from typing import Any

import pytest

from muxcluster.batch.store.entry import CHAT, COMPLETIONS, Entry, family_of
from muxcluster.batch.store.pending import Pending, PendingLines
from muxcluster.batch.store.store import BatchStore
from tests.batch.jobs import line_of, result_of, taken_in


def _prompt(family: int, number: int) -> str:
    return f"{family} " * 200 + f"question {number}"


def _entry(url: str, **body: Any) -> Entry:
    return Entry("r", url, {"model": "tiny", **body})


@pytest.mark.parametrize(
    "make",
    [
        lambda text: _entry(COMPLETIONS, prompt=text),
        lambda text: _entry(COMPLETIONS, prompt=[ord(each) for each in text]),
        lambda text: _entry(COMPLETIONS, prompt=[text, "another"]),
        lambda text: _entry(CHAT, messages=[{"role": "system", "content": text}]),
        lambda text: _entry(CHAT, messages=[{"content": [{"type": "text", "text": text}]}]),
    ],
)
def test_a_family_is_told_by_the_beginning_of_its_prompts(make: Any) -> None:
    texts = ["a" * 2000, "a" * 2000 + "end", "a" * 300 + "b" * 2000, "c" + "a" * 2000]
    whole, longer, near, other = (family_of(make(text)) for text in texts)
    assert whole == longer
    assert whole != near and whole[:4] == near[:4]
    assert whole[:4] != other[:4]


def test_what_is_no_prompt_has_a_family_too() -> None:
    odd: list[Any] = [None, 7, [], [{"role": "user"}], [[1, 2], [3]], {"a": 1}, "\ud800"]
    assert all(len(family_of(_entry(COMPLETIONS, prompt=each))) == 12 for each in odd)
    assert len(family_of(_entry(COMPLETIONS))) == 12


def test_lines_of_a_family_are_taken_together_and_ended_ones_are_not(tmp_path: Path) -> None:
    store = BatchStore(tmp_path)
    numbers = [(number % 5, number) for number in range(40)]
    random.Random(1).shuffle(numbers)
    texts = [_prompt(family, number) for family, number in numbers]
    bodies = [{"model": "tiny", "prompt": text, "max_tokens": 3} for text in texts]
    taken_in(store, [line_of(f"r-{i}", body=body) for i, body in enumerate(bodies)])
    listed = store.pending("b")
    store.record("b", [result_of(line) for line in listed[:10]])
    lines = store.pending_lines("b")
    assert (len(lines), lines.weight) == (30, sum(line.weight for line in listed[10:]))
    taken: list[Pending] = []
    while len(lines):
        some = lines.take(7)
        assert 0 < len(some) <= 7
        taken += some
    assert sorted(taken, key=lambda line: line.line) == listed[10:]
    families = [numbers[line.line - 1][0] for line in taken]
    assert sum(a != b for a, b in zip(families, families[1:], strict=False)) == 4
    store.close()


def test_listed_lines_keep_their_order() -> None:
    lines = [Pending(number, 0, 0, "tiny", number) for number in (3, 1, 2)]
    pending = PendingLines.of(lines)
    assert (len(pending), pending.weight) == (3, 6)
    assert pending.take(2) == lines[:2]
    assert pending.take(2) == lines[2:]
    assert pending.take(2) == []
