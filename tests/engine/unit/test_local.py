"""The asyncio front: streams, slow readers, aborts by closing the iterator."""

import asyncio

import pytest

from muxcluster.core.errors import NotReady
from muxcluster.core.events import FinishReason
from muxcluster.engine.unit.local import LocalUnitClient
from tests.engine.fakes import FakeExecutor, expected, fake_spec, request


async def collect(
    client: LocalUnitClient, request_id: str, prompt: list[int]
) -> tuple[list[int], FinishReason]:
    tokens: list[int] = []
    async for delta in client.generate(request(request_id, "wide", prompt, 12)):
        tokens.extend(delta.tokens)
        if delta.finished is not None:
            return tokens, delta.finished.reason
    raise AssertionError("a stream ended without an end")


def test_concurrent_streams_and_merging_for_a_slow_reader() -> None:
    async def main() -> None:
        client = LocalUnitClient(fake_spec(), executor=FakeExecutor())
        await client.start()
        fast = asyncio.gather(*(collect(client, f"r{i}", [i, i + 1]) for i in range(5)))
        slow = client.generate(request("slow", "narrow", [4, 2], 30))
        deltas = [await anext(slow)]
        for i, (tokens, reason) in enumerate(await fast):
            assert (tokens, reason) == (expected([i, i + 1], 12), FinishReason.LENGTH)
        while client.unit.num_open:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0)
        deltas += [delta async for delta in slow]
        assert [t for delta in deltas for t in delta.tokens] == expected([4, 2], 30)
        assert len(deltas) < 30
        assert client.stats() is not None
        await client.close()

    asyncio.run(main())


def test_closing_the_iterator_aborts() -> None:
    async def main() -> None:
        executor = FakeExecutor()
        client = LocalUnitClient(fake_spec(), executor=executor)
        await client.start()
        stream = client.generate(request("r", "wide", [1, 2, 3], 500))
        await anext(stream)
        await stream.aclose()
        while client.unit.num_open:
            await asyncio.sleep(0.01)
        assert sum(job.rows.counts.sum() for job in executor.launched) < 500
        stats = client.unit.stats()
        assert sum(model.used_blocks for model in stats.models) == 0
        await client.close()

    asyncio.run(main())


def test_close_ends_streams_and_refuses_new_ones() -> None:
    async def main() -> None:
        client = LocalUnitClient(fake_spec(), executor=FakeExecutor(["hold"]))
        await client.start()
        stream = asyncio.create_task(collect(client, "r", [1]))
        while not client.unit.num_open:
            await asyncio.sleep(0.01)
        await client.close()
        assert await stream == ([], FinishReason.ABORT)
        with pytest.raises(NotReady):
            await collect(client, "late", [1])

    asyncio.run(main())
