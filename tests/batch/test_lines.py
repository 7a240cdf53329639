"""Lines of files: the same as Python's own splitting, but for those that are too long."""

import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muxcluster.batch.store.lines import read_lines


@given(st.binary(max_size=400).map(lambda data: data.replace(b"\x00", b"\n")), st.integers(1, 40))
def test_lines_lie_where_they_say_and_only_long_ones_are_left_out(data: bytes, most: int) -> None:
    expected = data.split(b"\n")
    if expected[-1] == b"":
        expected.pop()
    lines = list(read_lines(io.BytesIO(data), most))
    assert [line.number for line in lines] == list(range(1, len(expected) + 1))
    assert [data[line.offset : line.offset + line.size] for line in lines] == expected
    held = [line.data for line in lines]
    assert held == [text if len(text) <= most else None for text in expected]


@pytest.mark.parametrize("size", [2**26, pytest.param(2**31, marks=pytest.mark.slow)])
def test_a_line_of_gigabytes(tmp_path: Path, size: int) -> None:
    path = tmp_path / "long.jsonl"
    with path.open("wb") as file:
        file.write(b"first\n")
        # a hole takes no disk
        file.seek(size)
        file.write(b"\nlast\n")
    with path.open("rb") as file:
        first, long, last = read_lines(file, 1000)
    assert (first.data, last.data) == (b"first", b"last")
    assert (long.data, long.size) == (None, size - len(b"first\n"))
