"""`muxcluster usage` against a scripted server."""

import json
from collections.abc import Iterator
from itertools import product

import pytest

from muxcluster.cli.usage import COUNTS
from tests.cli.calls import call, refusal
from tests.cli.scripted import Scripted, scripted_server

ROWS = [
    {"day": day, "key": key, "model": model, **{name: 10**i for i, name in enumerate(COUNTS)}}
    for day, key, model in product(("2026-01-01", "2026-01-02"), ("a", "[b]"), ("m", "n"))
]


@pytest.fixture
def scripted() -> Iterator[Scripted]:
    with scripted_server({"object": "list", "data": ROWS}) as found:
        yield found


@pytest.mark.parametrize("parts", [("key",), ("day", "model"), ("key", "day", "model"), ()])
def test_rows_are_summed_by_what_is_asked(
    capsys, monkeypatch: pytest.MonkeyPatch, scripted: Scripted, parts: tuple[str, ...]
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    by = [word for part in parts for word in ("--by", part)]
    options = (*by, "--url", f"{scripted.url}/v1", "--admin-key", "secret")
    code, out, err = call(capsys, "usage", *options, "--json")
    assert (code, err) == (0, "")
    names = parts or ("day", "key", "model")
    size = 2 ** (3 - len(names))
    rows = json.loads(out)
    assert len(rows) == len(ROWS) // size
    for row in rows:
        assert list(row) == [*names, *COUNTS]
        assert [row[name] for name in COUNTS] == [size * 10**i for i in range(len(COUNTS))]
    code, table, _ = call(capsys, "usage", *options)
    assert code == 0
    for row in rows:
        assert all(row[name] in table for name in names)
    assert f"{size * 10**4:,}" in table
    assert set(scripted.asked) == {"/usage"} and set(scripted.keys) == {"Bearer secret"}


def test_the_server_finds_the_rows(capsys, scripted: Scripted) -> None:
    options = ("--key", "a b", "--model", "m", "--since", "2026-01-01", "--until", "2026-01-02")
    assert call(capsys, "usage", *options, "--url", scripted.url)[0] == 0
    assert scripted.asked == ["/usage?key=a+b&model=m&since=2026-01-01&until=2026-01-02"]


def test_refusals_and_other_servers_are_told_in_one_line(capsys, scripted: Scripted) -> None:
    scripted.status = 403
    scripted.answer = {"error": {"message": "this route needs the admin key"}}
    assert "needs the admin key" in refusal(capsys, "usage", "--url", scripted.url)
    scripted.status = 200
    for other in ([], {"data": 3}, {"data": [{"key": "a"}]}):
        scripted.answer = other
        code, out, err = call(capsys, "usage", "--url", scripted.url)
        assert (code, out) == (1, "") and "but another one" in err
