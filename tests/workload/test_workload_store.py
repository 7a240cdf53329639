"""Our file gives back what was put in, and one that is not ours is refused with the place."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muxcluster.core.errors import ConfigError
from muxcluster.core.request import ServiceClass
from muxcluster.workload.arrival import Arrival, Prefix
from muxcluster.workload.files.store import load, save


@st.composite
def one_arrival(draw: st.DrawFn) -> Arrival:
    prompt = draw(st.integers(1, 100))
    prefix = None
    if draw(st.booleans()):
        size = draw(st.integers(1, 64))
        count = -(-prompt // size)
        ids = draw(st.lists(st.integers(0, 2**31 - 1), min_size=count, max_size=count))
        prefix = Prefix(tuple(ids), size)
    return Arrival(
        draw(st.floats(0, 1e6)),
        draw(st.text(min_size=1, max_size=5).filter(lambda text: text.isprintable())),
        draw(st.sampled_from(["a", "模型"])),
        prompt,
        draw(st.integers(1, 10**9)),
        draw(st.sampled_from(ServiceClass)),
        prefix,
    )


streams = st.lists(one_arrival(), max_size=8).map(lambda s: sorted(s, key=lambda a: a.time_s))


@given(streams, st.sampled_from(["w.jsonl", "w.jsonl.gz"]))
def test_what_is_saved_is_loaded(
    tmp_path_factory: pytest.TempPathFactory, arrivals: list[Arrival], name: str
) -> None:
    path = tmp_path_factory.getbasetemp() / name
    assert save(path, arrivals, "a note") == len(arrivals)
    assert list(load(path)) == arrivals
    first = path.read_bytes()
    save(path, arrivals, "a note")
    assert path.read_bytes() == first and (first[:2] == b"\x1f\x8b") == name.endswith(".gz")
    assert list(path.parent.glob(".*.part")) == []


def test_a_stream_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "w.jsonl"
    save(path, [Arrival(0.0, "old", "m", 1, 1)])

    def broken() -> Iterator[Arrival]:
        yield Arrival(2.0, "x", "m", 1, 1)
        yield Arrival(1.0, "y", "m", 1, 1)

    with pytest.raises(ValueError, match="y comes before"):
        save(path, broken())
    assert [arrival.request_id for arrival in load(path)] == ["old"]
    assert list(tmp_path.iterdir()) == [path]


GOOD = {"time_s": 1.0, "id": "r", "model": "m", "prompt_tokens": 5, "output_tokens": 1}
HEADER = '{"muxcluster_workload": 1, "note": ""}\n'


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"time_s": -1}, "time_s: expected a number from 0 up, found -1"),
        ({"time_s": "x"}, "time_s: expected a number"),
        ({"time_s": True}, "time_s: expected a number"),
        ({"time_s": 0.5}, "time_s: expected 1.0 or later"),
        ({"prompt_tokens": 0}, "prompt_tokens: expected a whole number from 1"),
        ({"prompt_tokens": 1.5}, "prompt_tokens: expected a whole number"),
        ({"output_tokens": 2**31}, "output_tokens: expected a whole number"),
        ({"id": ""}, "id: expected text"),
        ({"model": None}, "model: expected text"),
        ({"class": "urgent"}, "class: expected one of interactive, batch, found 'urgent'"),
        ({"block_ids": [1]}, "block_tokens: expected a whole number"),
        ({"block_ids": [1], "block_tokens": 2}, "block_ids: expected 3 block ids"),
        ({"block_ids": 7, "block_tokens": 8}, "block_ids: expected 1 block ids .* found 7"),
        ({"block_ids": [-1], "block_tokens": 8}, "block_ids: expected ids from 0"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, change: dict[str, object], reason: str) -> None:
    path = tmp_path / "w.jsonl"
    lines = [json.dumps(GOOD), json.dumps({**GOOD, **change})]
    path.write_text(HEADER + "\n".join(lines), encoding="utf-8")
    with pytest.raises(ConfigError, match=rf"w\.jsonl:3: {reason}"):
        list(load(path))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "w.jsonl:1: muxcluster_workload: expected version 1"),
        (b'{"muxcluster_workload": 2}\n', "w.jsonl:1: .*found 2"),
        (HEADER.encode() + b"[1]\n", "w.jsonl:2: expected a JSON object"),
        (HEADER.encode() + b"\n", "w.jsonl:2: not JSON"),
        (HEADER.encode() + b"\xff\n", "not readable"),
    ],
)
def test_files_of_others_are_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "w.jsonl"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=reason):
        list(load(path))
    with pytest.raises(ConfigError, match="not readable"):
        list(load(tmp_path / "absent.jsonl"))


def test_a_truncated_gzip_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "w.jsonl.gz"
    save(path, (Arrival(float(i), f"r{i}", "m", i + 1, 1) for i in range(2000)))
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(ConfigError, match="not readable"):
        list(load(path))
    path.write_bytes(gzip.compress(HEADER.encode())[:-8] + b"garbage!")
    with pytest.raises(ConfigError, match="not readable"):
        list(load(path))
