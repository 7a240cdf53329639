"""A token passes three async generators on its way from the unit's client to the HTTP answer."""

import inspect
import sys
from types import FrameType
from typing import Any

import pytest

from muxcluster.channel.mailbox import Mailbox
from muxcluster.core.events import TokenDelta
from muxcluster.core.served import ServedModel
from tests.http.clusters import Cluster, run

MOST_HOPS = 3
PROMPT = "hello"


def generators(frame: FrameType | None) -> list[str]:
    """The async generators that wait for `frame`, innermost first."""
    found = []
    while frame is not None:
        if frame.f_code.co_flags & inspect.CO_ASYNC_GENERATOR:
            found.append(frame.f_code.co_qualname)
        frame = frame.f_back
    return found


@pytest.mark.parametrize("num_choices", [1, 3])
@pytest.mark.parametrize("is_stream", [True, False])
def test_a_token_passes_at_most_three_generators(
    served: ServedModel, monkeypatch: pytest.MonkeyPatch, num_choices: int, is_stream: bool
) -> None:
    hops: set[tuple[str, ...]] = set()
    take = Mailbox.take

    async def noted(mailbox: Mailbox) -> TokenDelta:
        delta = await take(mailbox)
        # on the way back from a wait each frame stands on the one that waits for it
        hops.add(tuple(generators(sys._getframe())))
        return delta

    monkeypatch.setattr(Mailbox, "take", noted)
    seen: list[Any] = []

    async def work(cluster: Cluster) -> None:
        unit = cluster.start("unit-0", served.name)
        cluster.serve(unit, **{served.name: ("unit-0",)})
        await cluster.ready()
        asked = {"model": served.name, "prompt": PROMPT, "max_tokens": 20, "n": num_choices}
        if is_stream:
            stream = await cluster.client.completions.create(**asked, stream=True)
            seen.append("".join([event.choices[0].text async for event in stream]))
        else:
            whole = await cluster.client.completions.create(**asked)
            seen.append("".join(choice.text for choice in whole.choices))

    run((served,), work)
    assert len(seen[0]) == 20 * num_choices
    assert all(1 <= len(names) <= MOST_HOPS for names in hops), hops
