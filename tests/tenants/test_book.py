"""The counter and its ledger: exactly once, over losses of ingresses and of the counter."""

import asyncio
import sqlite3
from dataclasses import astuple
from pathlib import Path

import pytest

from muxcluster.tenants.book import LOST_S, KeyBook
from muxcluster.tenants.keys import KeyLimits, TenantKey
from muxcluster.tenants.ledger import NAME
from muxcluster.tenants.limiter import DAY_S, Instant
from muxcluster.tenants.messages import Ask, Settlement, UsageQuery

KEY = TenantKey("a", "0" * 64, limits=KeyLimits(tokens_per_day=100, concurrent_requests=2))
NOON = 20_000 * DAY_S + DAY_S / 2


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> Instant:
        return Instant(self.now_s, NOON + self.now_s)


@pytest.fixture
def clock() -> Clock:
    return Clock()


def book_in(folder: Path, clock: Clock) -> KeyBook:
    book = KeyBook(folder, clock)
    book.replace_keys([KEY])
    return book


def ask(book: KeyBook, call_id: str, tokens: int = 40, caller: str = "i") -> bool:
    (grant,) = asyncio.run(book.reserve(caller, [Ask(call_id, "a", "m", 10, tokens)]))
    return grant.is_granted


def end(call_id: str, output: int = 5) -> Settlement:
    return Settlement(
        call_id, "a", "m", num_prompt_tokens=10, num_output_tokens=output, num_cached_tokens=3
    )


def sums(book: KeyBook, query: UsageQuery | None = None) -> list[tuple[object, ...]]:
    return [astuple(row) for row in asyncio.run(book.usage(query or UsageQuery()))]


def test_a_batch_of_settlements_counts_once_even_after_a_restart(tmp_path, clock) -> None:
    book = book_in(tmp_path, clock)
    assert ask(book, "1") and ask(book, "2") and not ask(book, "3")
    refused = Settlement("3", "a", "m", num_requests=0, num_refused=1)
    batch = [end("1"), end("2", 7), refused]
    for _ in range(2):
        asyncio.run(book.settle("i", 1, batch))
    row = ("2024-10-04", "a", "m", 2, 20, 12, 6, 1)
    assert sums(book) == [row]
    book.close()
    # the answer to the batch was lost with the counter's process
    again = book_in(tmp_path, clock)
    asyncio.run(again.settle("i", 1, batch))
    assert sums(again) == [row]
    asyncio.run(again.settle("i", 2, [end("4")]))
    assert sums(again)[0][3] == 3
    again.close()


def test_a_successor_knows_the_tokens_of_the_day_and_not_of_the_day_before(tmp_path, clock) -> None:
    book = book_in(tmp_path, clock)
    assert ask(book, "1", 90)
    asyncio.run(book.settle("i", 1, [end("1", 60)]))
    book.close()
    same_day = book_in(tmp_path, clock)
    assert not ask(same_day, "2", 31)
    assert ask(same_day, "3", 30)
    same_day.close()
    clock.now_s += DAY_S
    next_day = book_in(tmp_path, clock)
    assert ask(next_day, "4", 100)
    next_day.close()


def test_requests_of_a_dead_ingress_end_with_their_prompt(tmp_path, clock) -> None:
    book = book_in(tmp_path, clock)
    for caller in ("i", "j"):
        asyncio.run(book.table(caller, ""))
    assert ask(book, "1") and ask(book, "2") and not ask(book, "3", caller="j")
    clock.now_s += LOST_S + 1  # for so long the counter itself heard nobody
    assert asyncio.run(book.table("j", "")) is not None
    assert sums(book) == [] and not ask(book, "3", caller="j")
    for _ in range(3):
        clock.now_s += LOST_S / 3 + 1
        assert asyncio.run(book.table("j", "")) is not None
    assert sums(book) == [("2024-10-04", "a", "m", 2, 20, 0, 0, 0)]
    assert ask(book, "3", caller="j") and ask(book, "4", caller="j")
    # it lives after all: what it tells later is added, and what is there is not counted again
    asyncio.run(book.settle("i", 1, [end("1"), end("2")]))
    assert sums(book) == [("2024-10-04", "a", "m", 2, 20, 10, 6, 0)]
    book.close()


def test_a_disk_that_refuses_keeps_no_request_open_and_the_batch_counts_later(
    tmp_path, clock, monkeypatch
) -> None:
    book = book_in(tmp_path, clock)
    assert ask(book, "1") and ask(book, "2")
    other = sqlite3.connect(tmp_path / NAME, isolation_level=None)
    book._ledger._file.connection.execute("PRAGMA busy_timeout=0")
    other.execute("BEGIN IMMEDIATE")
    for _ in range(2):  # the answer is lost once
        asyncio.run(book.settle("i", 1, [end("1")]))
    asyncio.run(book.settle("i", 2, [end("2")]))
    assert ask(book, "3", 10)
    assert not ask(book, "4", 61)  # the day's tokens know what the disk does not
    assert sums(book) == []
    other.execute("ROLLBACK")
    other.close()
    asyncio.run(book.settle("i", 3, [end("3", 10)]))
    ((*_, requests, prompt, output, cached, refused),) = sums(book)
    assert (requests, prompt + output, refused) == (3, 50, 0)
    book.close()


def test_what_a_disk_refused_is_written_at_the_end(tmp_path, clock) -> None:
    book = book_in(tmp_path, clock)
    assert ask(book, "1")
    other = sqlite3.connect(tmp_path / NAME, isolation_level=None)
    book._ledger._file.connection.execute("PRAGMA busy_timeout=0")
    other.execute("BEGIN IMMEDIATE")
    asyncio.run(book.settle("i", 1, [end("1")]))
    other.execute("ROLLBACK")
    other.close()
    book.close()
    again = book_in(tmp_path, clock)
    assert sums(again)[0][3] == 1
    again.close()


def test_rows_are_found_by_key_model_and_day(tmp_path, clock) -> None:
    book = book_in(tmp_path, clock)
    for serial, (key, model) in enumerate([("a", "m"), ("a", "n"), ("b", "m")], 1):
        asyncio.run(book.settle("i", serial, [Settlement("x", key, model, num_prompt_tokens=1)]))
        clock.now_s += DAY_S
    assert [row[:3] for row in sums(book)] == [
        ("2024-10-04", "a", "m"),
        ("2024-10-05", "a", "n"),
        ("2024-10-06", "b", "m"),
    ]
    assert [row[2] for row in sums(book, UsageQuery(key="a"))] == ["m", "n"]
    assert [row[1] for row in sums(book, UsageQuery(model="m"))] == ["a", "b"]
    assert len(sums(book, UsageQuery(since="2024-10-05", until="2024-10-05"))) == 1
    book.close()


def test_the_table_is_told_once_for_each_version(tmp_path, clock) -> None:
    book = KeyBook(tmp_path, clock)
    assert asyncio.run(book.table("i", "")) is None
    book.replace_keys([KEY])
    table = asyncio.run(book.table("i", ""))
    assert table is not None and table.keys == (KEY,)
    assert asyncio.run(book.table("i", table.version)) is None
    book.replace_keys([])
    emptied = asyncio.run(book.table("i", table.version))
    assert emptied is not None and emptied.keys == ()
    book.close()
