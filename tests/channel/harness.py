"""A unit behind a real server, and clients of it, for the tests of the channel."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable

import numpy as np

from muxcluster.channel.client import UnitClient
from muxcluster.channel.curve import Door, new_keys
from muxcluster.channel.server import UnitCalls, UnitServer
from muxcluster.core.directory import KeyPair, UnitAddress
from muxcluster.core.errors import InvalidValue, ModelNotFound, MoveRefused, Overloaded
from muxcluster.core.events import Finished, FinishReason, TokenDelta
from muxcluster.core.request import Request
from muxcluster.core.residency import WeightOrder
from muxcluster.core.sampling import SamplingParams
from muxcluster.core.served import ModelStats, UnitStats

PATIENCE_S = 600.0
"""How long a test waits for what must happen; only a failing test waits that long."""

LONG_S = 600.0
"""Silence that no test reaches, so what is noticed is noticed by the broken connection."""

SHORT_S = 2.0
"""Silence that must be noticed; nobody else may be so slow to wake up."""
CLIENT_KEYS = new_keys()
STATS_S = 0.05


def request(request_id: str, num_tokens: int = 3) -> Request:
    sampling = SamplingParams(max_tokens=num_tokens)
    return Request(request_id, "m", np.arange(5, dtype=np.int32), sampling)


def finished(request_id: str) -> TokenDelta:
    return TokenDelta(finished=Finished(request_id, FinishReason.LENGTH))


class Unit:
    """A unit behind a real server that remembers what it was told and answers when asked to.

    Requests whose id starts with "echo" are answered at once, a delta per token; "busy" ones are
    refused, "bad" ones rejected. Its model "m" can be moved, "fixed" cannot, others it has none.
    """

    def __init__(self, endpoint: str, silence_s: float = LONG_S) -> None:
        self.submitted: list[str] = []
        self.aborted: list[str] = []
        self.num_stats = 0
        self.orders: list[WeightOrder] = []
        self.server = UnitServer(
            Door(endpoint, None if endpoint.startswith("ipc") else CLIENT_KEYS.public),
            UnitCalls(self.submit, self.aborted.append, self.stats, move=self.move),
            silence_s=silence_s,
            stats_s=STATS_S,
        )
        self.address = UnitAddress("u", self.server.start(), self.server.server_key)

    def submit(self, request: Request) -> None:
        request_id = request.request_id
        if request_id.startswith("busy"):
            raise Overloaded("full", retry_after_s=4)
        if request_id.startswith("bad"):
            raise InvalidValue("no such thing")
        self.submitted.append(request_id)
        if request_id.startswith("echo"):
            threading.Thread(target=self.echo, args=(request,)).start()

    def echo(self, request: Request) -> None:
        for token in range(request.sampling.max_tokens):
            self.server.send({request.request_id: TokenDelta((token,))})
        self.server.send({request.request_id: finished(request.request_id)})

    def move(self, model: str, order: WeightOrder) -> None:
        if model == "fixed":
            raise MoveRefused("it stays")
        if model != "m":
            raise ModelNotFound("not here")
        self.orders.append(order)

    def stats(self) -> UnitStats:
        self.num_stats += 1
        orders = tuple(ModelStats("m", order=order) for order in self.orders[-1:])
        return UnitStats("u", float(self.num_stats), 10, 10, orders)


def run(
    address: UnitAddress,
    scenario: Callable[[UnitClient], Awaitable[object]],
    silence_s: float = LONG_S,
    keys: KeyPair = CLIENT_KEYS,
) -> None:
    async def connected() -> None:
        client = UnitClient(silence_s=silence_s)
        await client.connect(address, keys)
        try:
            await asyncio.wait_for(scenario(client), PATIENCE_S)
        finally:
            await client.close()

    asyncio.run(connected())


async def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline, "it never happened"
        await asyncio.sleep(0.005)


async def collect(client: UnitClient, request: Request) -> list[TokenDelta]:
    return [delta async for delta in client.generate(request)]


def tokens_of(deltas: list[TokenDelta]) -> list[int]:
    return [token for delta in deltas for token in delta.tokens]
