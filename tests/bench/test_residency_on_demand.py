"""The rival of one process a model: its memory, its order and its answers, with fake servers."""

import asyncio

import pytest

from bench.online.on_demand import OnDemand, play
from bench.online.parked import OUTPUT_TOKENS, Ask, Load, trace_of

START_S, ANSWER_S = 0.01, 0.002


class FakeServers:
    """Starts servers that answer by the clock, and knows which run."""

    def __init__(self, failing: str = "") -> None:
        self.running: set[str] = set()
        self.started: list[str] = []
        self.most = 0
        self._failing = failing

    async def start(self, name: str) -> "FakeServer":
        assert name not in self.running
        await asyncio.sleep(START_S)
        if name == self._failing:
            raise RuntimeError("no such model")
        self.running.add(name)
        self.started.append(name)
        self.most = max(self.most, len(self.running))
        return FakeServer(self, name)


class FakeServer:
    def __init__(self, servers: FakeServers, name: str) -> None:
        self._servers, self._name, self._num_open = servers, name, 0

    async def answer(self, ask: Ask) -> tuple[float, int]:
        assert self._name == ask.model and self._name in self._servers.running
        self._num_open += 1
        first_s = asyncio.get_running_loop().time()
        await asyncio.sleep(ANSWER_S)
        self._num_open -= 1
        return first_s, OUTPUT_TOKENS

    async def stop(self) -> None:
        assert not self._num_open, "it answers still"
        self._servers.running.discard(self._name)


def played(asks: list[Ask], room: int, failing: str = "") -> tuple[Load, FakeServers, OnDemand]:
    servers = FakeServers(failing)

    async def run() -> tuple[Load, OnDemand]:
        system = OnDemand(dict.fromkeys("abcd", 1), room, servers.start)
        return await play(asks, system), system

    load, system = asyncio.run(run())
    assert not servers.running, "a server goes on"
    return load, servers, system


@pytest.mark.parametrize("room", [1, 2, 4])
def test_every_request_is_answered_within_the_memory(room: int) -> None:
    asks = trace_of(list("abcd"), 200.0, 0.5, 3)
    load, servers, system = played(asks, room)
    assert load.result()["lost"] == 0
    assert servers.most == system.most_bytes == min(room, 4)
    assert system.num_starts == len(servers.started) >= 4
    if room == 4:
        assert sorted(servers.started) == list("abcd")


def test_models_start_in_the_order_in_which_they_were_asked_for() -> None:
    times = {"a": 0.0, "c": 0.001, "b": 0.002}
    asks = [
        Ask(at, name, name, trace_of(["a"], 9.0, 1.0, 0)[0].prompt) for name, at in times.items()
    ]
    _, servers, _ = played(asks, 1)
    assert servers.started == ["a", "c", "b"]


def test_requests_of_a_model_that_does_not_start_are_lost_and_others_are_not() -> None:
    asks = trace_of(list("ab"), 100.0, 0.3, 1)
    load, _, _ = played(asks, 1, failing="b")
    num_lost = sum(each.model == "b" for each in asks)
    assert load.result()["lost"] == num_lost > 0
