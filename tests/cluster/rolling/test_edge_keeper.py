"""The order in which ingresses are replaced, also by a controller that takes over in the middle."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from muxcluster.cluster.control import edge_keeper
from muxcluster.cluster.control.edge_keeper import EdgeKeeper
from muxcluster.cluster.state.edge import Edge, stand_in_version
from muxcluster.core.errors import EngineFailure

PATIENCE_S = 20.0
NUM_NODES = 2


@dataclass
class FakeServe:
    """What Serve was told, and whether a second set of ingresses runs there."""

    told: list[str] = field(default_factory=list)
    has_stand_in: bool = False
    failing: set[str] = field(default_factory=set)  # versions that do not start
    failing_deploys: set[str] = field(default_factory=set)  # those whose stand-ins alone do


@dataclass(frozen=True)
class FakeEdge:
    """An `Edge` over a `FakeServe`."""

    version: str
    serve: FakeServe = field(compare=False)
    listens: bool = True
    drain_s: float = PATIENCE_S

    def count(self, num_nodes: int) -> int:
        return num_nodes

    def deploy(self, controller: Any, num_nodes: int, *, is_beside: bool) -> None:
        assert controller == "the controller" and num_nodes == NUM_NODES
        self.serve.told.append(f"deploy {self.version}{' beside' if is_beside else ''}")
        if self.version in self.serve.failing_deploys:
            raise EngineFailure("no")

    def stand_in(self, controller: Any, num_nodes: int) -> None:
        self.serve.told.append(f"stand in {self.version}")
        if self.version in self.serve.failing:
            raise EngineFailure("no")
        self.serve.has_stand_in = True

    def has_stand_in(self) -> bool:
        return self.serve.has_stand_in

    def end_stand_in(self) -> None:
        self.serve.told.append("end")
        self.serve.has_stand_in = False


@pytest.fixture(autouse=True)
def _no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edge_keeper, "find_actor", lambda name: f"the {name}")
    monkeypatch.setattr(edge_keeper, "LEAVE_POLL_S", 0.001)
    monkeypatch.setattr(edge_keeper, "RETRY_S", 0.0)


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not is_so():
            await asyncio.sleep(0.001)


async def leave(keeper: EdgeKeeper, version: str) -> None:
    """Let the ingresses of a version, which are asked to leave, say that they have."""
    await until(lambda: keeper.leaving == version)
    for node in range(NUM_NODES):
        keeper.note_leaving(f"{version} on {node}", version, is_over=True)


def test_the_first_ingresses_need_no_stand_in() -> None:
    serve, kept = FakeServe(), list[Edge]()

    async def scenario() -> None:
        edge = FakeEdge("a", serve)
        keeper = EdgeKeeper(None, kept.append)
        assert not keeper.is_deployed(edge) and keeper.is_deployed(None)
        keeper.keep(edge, NUM_NODES)
        await until(lambda: keeper.is_deployed(edge))
        assert kept == [edge]
        keeper.keep(edge, NUM_NODES)
        await asyncio.sleep(0.01)

    asyncio.run(scenario())
    assert serve.told == ["deploy a"]


def test_old_ingresses_finish_their_answers_before_they_are_replaced() -> None:
    serve, kept = FakeServe(), list[Edge]()

    async def scenario() -> None:
        old, new = FakeEdge("old", serve), FakeEdge("new", serve)
        keeper = EdgeKeeper(old, kept.append)
        keeper.keep(new, NUM_NODES)
        await until(lambda: keeper.leaving == "old")
        keeper.note_leaving("one", "old", is_over=True)
        keeper.note_leaving("two", "old", is_over=False)
        await asyncio.sleep(0.05)
        assert serve.told == ["stand in new"] and not keeper.is_deployed(new) and not kept
        keeper.note_leaving("two", "old", is_over=True)
        await until(lambda: keeper.is_deployed(new))
        assert serve.told == ["stand in new", "deploy new beside"] and kept == [new]
        await leave(keeper, stand_in_version("new"))
        await until(lambda: keeper.leaving == "")

    asyncio.run(scenario())
    assert serve.told == ["stand in new", "deploy new beside", "end"]


def test_stand_ins_that_a_dead_controller_left_behind_are_ended() -> None:
    serve = FakeServe(has_stand_in=True)

    async def scenario() -> None:
        edge = FakeEdge("new", serve)
        keeper = EdgeKeeper(edge, lambda edge: None)
        keeper.keep(edge, NUM_NODES)
        await leave(keeper, stand_in_version("new"))
        await until(lambda: keeper.leaving == "")

    asyncio.run(scenario())
    assert serve.told == ["deploy new beside", "end"]


def test_ingresses_that_do_not_start_leave_the_old_ones_in_their_place() -> None:
    serve, kept = FakeServe(failing={"bad"}), list[Edge]()

    async def scenario() -> None:
        old, bad = FakeEdge("old", serve), FakeEdge("bad", serve)
        keeper = EdgeKeeper(old, kept.append)
        keeper.keep(bad, NUM_NODES)
        await until(lambda: keeper.num_failures == 1)
        assert keeper.problem is not None and not keeper.is_deployed(bad)
        assert keeper.leaving == ""
        keeper.forget_failures()
        keeper.keep(old, NUM_NODES)
        await until(lambda: keeper.is_deployed(old))

    asyncio.run(scenario())
    assert serve.told == ["stand in bad", "deploy old"] and not kept


def test_after_a_failure_the_old_ones_start_beside_the_stand_ins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(edge_keeper, "HEARD_S", 0.01)
    serve, kept = FakeServe(failing_deploys={"bad"}), list[Edge]()

    async def scenario() -> None:
        old, bad = FakeEdge("old", serve, drain_s=0.01), FakeEdge("bad", serve)
        keeper = EdgeKeeper(old, kept.append)
        keeper.keep(bad, NUM_NODES)
        await leave(keeper, "old")
        await until(lambda: keeper.num_failures == 1)
        keeper.forget_failures()
        keeper.keep(old, NUM_NODES)
        await until(lambda: keeper.is_deployed(old) and not serve.has_stand_in)

    asyncio.run(scenario())
    assert serve.told == ["stand in bad", "deploy bad beside", "deploy old beside", "end"]
    assert not kept


def test_ingresses_behind_serves_proxy_are_left_to_serve() -> None:
    serve = FakeServe()

    async def scenario() -> None:
        old, new = (FakeEdge(name, serve, listens=False) for name in ("old", "new"))
        keeper = EdgeKeeper(old, lambda edge: None)
        keeper.keep(new, NUM_NODES)
        await until(lambda: keeper.is_deployed(new))

    asyncio.run(scenario())
    assert serve.told == ["deploy new"]


def test_a_dead_ingress_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edge_keeper, "HEARD_S", 0.1)
    serve = FakeServe()

    async def scenario() -> None:
        old, new = FakeEdge("old", serve), FakeEdge("new", serve)
        keeper = EdgeKeeper(old, lambda edge: None)
        keeper.keep(new, NUM_NODES)
        await until(lambda: keeper.leaving == "old")
        keeper.note_leaving("one", "old", is_over=True)
        await until(lambda: keeper.is_deployed(new))

    asyncio.run(scenario())
    assert serve.told[:2] == ["stand in new", "deploy new beside"]
