"""The request log's lines, and who may read them."""

import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from muxcluster.http.metrics import request_log


@pytest.fixture(autouse=True)
def cleaned() -> Iterator[None]:
    logger = logging.getLogger("muxcluster.requests")
    before = list(logger.handlers), logger.level, logger.propagate
    umask = os.umask(0)
    yield
    os.umask(umask)
    for handler in set(logger.handlers) - set(before[0]):
        logger.removeHandler(handler)
        handler.close()
    logger.setLevel(before[1])
    logger.propagate = before[2]


@pytest.mark.parametrize("is_there", [False, True])
def test_only_its_owner_reads_it(tmp_path: Path, is_there: bool) -> None:
    path = tmp_path / "requests.jsonl"
    if is_there:
        path.write_text("{}\n")
        path.chmod(0o644)
    request_log.write_to(path)
    request_log.write({"model": "m", "end": "stop"})
    assert path.stat().st_mode & 0o777 == 0o600
    assert json.loads(path.read_text().splitlines()[-1]) == {"model": "m", "end": "stop"}
    assert len(path.read_text().splitlines()) == 1 + is_there
