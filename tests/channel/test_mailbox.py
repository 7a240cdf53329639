"""A mailbox merges what its reader has not taken."""

import asyncio

import pytest

from muxcluster.channel.mailbox import Mailbox
from muxcluster.core.events import Finished, FinishReason, TokenDelta


def test_unread_deltas_become_one() -> None:
    async def scenario() -> None:
        mailbox = Mailbox()
        end = Finished("r", FinishReason.LENGTH)
        for delta in (TokenDelta((1,)), TokenDelta((2, 3)), TokenDelta((4,), finished=end)):
            mailbox.put(delta)
        assert await mailbox.take() == TokenDelta((1, 2, 3, 4), finished=end)

    asyncio.run(scenario())


def test_a_reader_waits_for_the_next_delta() -> None:
    async def scenario() -> None:
        mailbox = Mailbox()
        mailbox.put(TokenDelta((1,)))
        await mailbox.take()
        reader = asyncio.create_task(mailbox.take())
        await asyncio.sleep(0)
        assert not reader.done()
        mailbox.put(TokenDelta((2,)))
        assert await reader == TokenDelta((2,))

    asyncio.run(scenario())


def test_what_waits_comes_before_the_error() -> None:
    async def scenario() -> None:
        mailbox = Mailbox()
        mailbox.put(TokenDelta((1,)))
        mailbox.fail(KeyError("gone"))
        assert await mailbox.take() == TokenDelta((1,))
        for _ in range(2):
            with pytest.raises(KeyError, match="gone"):
                await mailbox.take()

    asyncio.run(scenario())
