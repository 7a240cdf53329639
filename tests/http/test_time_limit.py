"""One time limit for all waits of a call, beside what `asyncio.timeout_at` does for each."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest

from muxcluster.http.calls.time_limit import TimeLimit

Limited = Callable[[], AbstractAsyncContextManager[None]]


def made(kind: str, left_s: float) -> Limited:
    """Makes each wait of one call limited, by ours or by Python's."""
    deadline_s = asyncio.get_running_loop().time() + left_s
    limit = TimeLimit(deadline_s)

    @asynccontextmanager
    async def ours():
        with limit:
            yield

    return ours if kind == "ours" else lambda: asyncio.timeout_at(deadline_s)


async def outcome(work: Awaitable[object]) -> str:
    try:
        await work
    except BaseException as error:  # noqa: BLE001 - its kind is what is asked
        return type(error).__name__
    return "returned"


@pytest.mark.parametrize("kind", ["ours", "pythons"])
def test_waits_end_with_the_limit_and_the_task_goes_on(kind: str) -> None:
    async def main() -> None:
        limited = made(kind, 0.05)

        async def wait(seconds: float) -> None:
            async with limited():
                await asyncio.sleep(seconds)

        assert await outcome(wait(0.0)) == "returned"
        assert await outcome(wait(60.0)) == "TimeoutError"
        assert asyncio.current_task().cancelling() == 0
        # afterwards, what is there is returned and what is not is late
        ready = asyncio.get_running_loop().create_future()
        ready.set_result(1)
        async with limited():
            assert await ready == 1
        assert await outcome(wait(60.0)) == "TimeoutError"
        assert await outcome(asyncio.create_task(wait(60.0))) == "TimeoutError"
        await asyncio.sleep(0.01)

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["ours", "pythons"])
def test_another_cancellation_stays_one(kind: str) -> None:
    async def main() -> None:
        limited = made(kind, 60.0)

        async def wait() -> None:
            async with limited():
                await asyncio.sleep(60.0)

        task = asyncio.create_task(outcome(wait()))
        await asyncio.sleep(0.0)
        task.cancel()
        assert await task == "CancelledError"

    asyncio.run(main())


def test_a_closed_limit_interrupts_nothing() -> None:
    async def main() -> None:
        limit = TimeLimit(asyncio.get_running_loop().time() + 0.01)
        with limit:
            limit.close()
            await asyncio.sleep(0.03)

    asyncio.run(main())
