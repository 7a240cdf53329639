"""Clients of the actor that keeps responses: actors that are replaced, die, or cannot start."""

import asyncio
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import ray

from muxcluster.cluster.embedded import EmbeddedRay
from muxcluster.cluster.ingress import response_store
from muxcluster.cluster.ingress.response_store import ResponseStoreClient
from muxcluster.cluster.units.actors import RESPONSES, find_actor
from muxcluster.core.errors import NotReady
from muxcluster.http.apis.responses.store import StoredResponse
from muxcluster.http.settings import StoreSettings

# of Ray about its own options
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.usefixtures("embedded"),
]
KEPT = StoredResponse("a", "me", 2**40, "", True, b"[]", b"{}")


@pytest.fixture(scope="module")
def embedded() -> Iterator[EmbeddedRay]:
    found = EmbeddedRay(None, 1, 0)
    try:
        yield found
    finally:
        found.close()


def actor_id() -> str:
    actor = find_actor(RESPONSES)
    assert actor is not None
    return str(actor._actor_id.hex())


async def found_by(client: ResponseStoreClient) -> StoredResponse | None:
    """What a client finds, once an actor that was killed answers again."""
    while True:
        try:
            return await client.find("me", "a")
        except NotReady:
            await asyncio.sleep(0.2)


def end_actor() -> None:
    actor = find_actor(RESPONSES)
    if actor is not None:
        ray.kill(actor)


def test_who_asks_is_answered_by_the_next_actor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = StoreSettings(str(tmp_path / "kept"), 30, 2**20)

    async def scenario() -> None:
        first = ResponseStoreClient(settings)
        asked = [first.find("me", "a") for _ in range(5)]
        assert await asyncio.gather(*asked) == [None] * 5
        await first.add(KEPT)
        old = actor_id()
        # as a newer version does
        second = ResponseStoreClient(replace(settings, version="next"))
        assert await second.find("me", "a") == KEPT
        new = actor_id()
        assert new != old
        # the first request that finds its actor gone is answered by the other one
        assert await first.find("me", "a") == KEPT
        await first.add(KEPT)
        assert await first.is_open("me", "a")
        assert await first.end("me", "a", b'{"n":1}')
        ended = replace(KEPT, is_open=False, response=b'{"n":1}')
        assert await second.turns("me", "a") == [ended]
        pid = ray.get(find_actor(RESPONSES).__ray_call__.remote(lambda host: os.getpid()))
        os.kill(pid, signal.SIGKILL)
        assert await found_by(second) == ended
        assert actor_id() == new
        # ended on purpose: one is made after a while
        monkeypatch.setattr(response_store, "REMAKE_S", 0.5)
        await asyncio.to_thread(end_actor)
        assert await found_by(second) == ended
        assert await second.delete("me", "a")

    asyncio.run(scenario())
    end_actor()


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("a file")
    client = ResponseStoreClient(StoreSettings(str(tmp_path / "kept"), 30, 2**20))
    with pytest.raises(NotReady, match=str(tmp_path / "kept")):
        asyncio.run(client.find("me", "a"))
