"""Appending to files whose length is kept elsewhere."""

import errno
import os
from pathlib import Path

import pytest

from muxcluster.batch.store.appending import write_at
from muxcluster.core.errors import StorageFailed


def test_a_write_that_fails_half_way_leaves_the_file_as_long_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "results"
    write_at(file, 0, b"whole\n")
    pwrite = os.pwrite
    calls = []

    def fills_up(handle: int, data: memoryview, offset: int) -> int:
        calls.append(offset)
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return pwrite(handle, data[:3], offset)

    monkeypatch.setattr(os, "pwrite", fills_up)
    with pytest.raises(StorageFailed, match="No space left"):
        write_at(file, 6, b"the next line\n")
    assert calls == [6, 9]
    assert file.read_bytes() == b"whole\n"
