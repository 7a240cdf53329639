"""Objects that live long are left out of collections while batches run, and looked at after."""

import asyncio
import gc
import weakref
from collections.abc import Iterator

import pytest

from muxcluster.batch.service import short_collections
from muxcluster.batch.service.short_collections import keep_collections_short


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(short_collections, "PERIOD_S", 0.001)
    yield
    gc.unfreeze()


class _Node:
    """A part of a cycle."""

    def __init__(self) -> None:
        self.me = self


def test_cycles_outlive_collections_only_while_batches_run() -> None:
    is_busy = True

    async def run() -> None:
        nonlocal is_busy
        node = _Node()
        seen = weakref.ref(node)
        keeping = asyncio.create_task(keep_collections_short(lambda: is_busy))
        await asyncio.sleep(0.02)
        assert gc.get_freeze_count() > 1000
        del node
        gc.collect()
        assert seen() is not None
        is_busy = False
        await asyncio.sleep(0.1)
        assert seen() is None
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)

    asyncio.run(run())
    assert gc.get_freeze_count() == 0


def test_what_has_no_cycle_is_freed_at_once() -> None:
    class Leaf:
        pass

    async def run() -> None:
        leaf = Leaf()
        seen = weakref.ref(leaf)
        keeping = asyncio.create_task(keep_collections_short(lambda: True))
        await asyncio.sleep(0.02)
        del leaf
        assert seen() is None
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)

    asyncio.run(run())
