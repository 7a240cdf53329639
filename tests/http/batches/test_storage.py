"""Which batches wait for the disk, and what the log is told of it."""

import logging

from muxcluster.batch.service.storage import StorageWaits
from muxcluster.core.errors import StorageFailed

FULL = StorageFailed("/srv/batches.sqlite", "database or disk is full")


def test_the_log_is_told_once_while_any_batch_waits(caplog) -> None:
    caplog.set_level(logging.INFO)
    waits = StorageWaits()
    waits.end("a")
    assert not caplog.records
    for _ in range(100):
        waits.begin("a", FULL)
        waits.begin("b", FULL)
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "/srv/batches.sqlite: database or disk is full" in caplog.records[0].message
    assert (len(waits), waits.num_failures) == (2, 200)
    assert waits.reason("a") == waits.reason("b") == "database or disk is full"
    waits.end("a")
    assert (len(waits), waits.reason("a")) == (1, None)
    assert len(caplog.records) == 1
    waits.end("b")
    assert [record.levelname for record in caplog.records] == ["ERROR", "INFO"]
    waits.begin("a", FULL)
    assert len(caplog.records) == 3, "the next full disk is news"
