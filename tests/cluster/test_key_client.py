"""Clients of the counter's actor in Ray: changed keys, and actors that end."""

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray

from muxcluster.cluster.embedded import EmbeddedRay
from muxcluster.cluster.ingress import key_client
from muxcluster.cluster.ingress.key_client import KeyServiceClient
from muxcluster.cluster.units.actors import KEYS, find_actor
from muxcluster.core.errors import NotReady
from muxcluster.tenants.keys import KeyLimits, KeySettings, KeyTable, TenantKey
from muxcluster.tenants.messages import Ask, Settlement, UsageQuery

# of Ray about its own options
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
OLD = TenantKey("old", "0" * 64, limits=KeyLimits(requests_per_minute=5))
NEW = TenantKey("new", "1" * 64)


@pytest.fixture(scope="module")
def embedded() -> Iterator[EmbeddedRay]:
    found = EmbeddedRay(None, 1, 0)
    try:
        yield found
    finally:
        found.close()


async def table_of(client: KeyServiceClient) -> KeyTable:
    """The table, once the client has found an actor that lives."""
    while True:
        try:
            found = await client.table("caller", "")
        except NotReady:
            await asyncio.sleep(0.2)
        else:
            assert found is not None
            return found


def pid_of_actor() -> int:
    actor = find_actor(KEYS)
    assert actor is not None
    return int(ray.get(actor.__ray_call__.remote(lambda host: os.getpid())))


@pytest.mark.usefixtures("embedded")
def test_new_keys_replace_the_actor_once_and_stay_after_a_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_client, "REMAKE_S", 600.0)
    before = KeySettings(str(tmp_path), (OLD,))
    after = KeySettings(str(tmp_path), (NEW,))

    async def scenario() -> None:
        first = KeyServiceClient(before, may_replace=True)
        assert (await table_of(first)).keys == (OLD,)
        asks = [Ask(f"{i}", "old", "m", 1, 1) for i in range(6)]
        grants = await first.reserve("caller", asks)
        assert [grant.is_granted for grant in grants] == [True] * 5 + [False]
        await first.settle("caller", 1, [Settlement("0", "old", "m", num_prompt_tokens=7)])
        second = KeyServiceClient(after, may_replace=True)
        assert (await table_of(second)).keys == (NEW,)
        # the first one finds the new actor, although it may make none now and has other keys
        assert (await table_of(first)).keys == (NEW,)
        assert (await table_of(KeyServiceClient(before, may_replace=False))).keys == (NEW,)
        pid = pid_of_actor()
        os.kill(pid, signal.SIGKILL)
        assert (await table_of(second)).keys == (NEW,)
        assert await asyncio.to_thread(pid_of_actor) != pid
        (row,) = await second.usage(UsageQuery())
        assert (row.key, row.requests, row.prompt_tokens) == ("old", 1, 7)
        # ended on purpose: nobody makes one for a while
        await asyncio.to_thread(ray.kill, find_actor(KEYS))
        for client in (first, second):
            for _ in range(2):
                with pytest.raises(NotReady):
                    await client.table("caller", "")
        assert await asyncio.to_thread(find_actor, KEYS) is None

    asyncio.run(scenario())
