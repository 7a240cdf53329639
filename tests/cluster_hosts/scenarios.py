"""What may befall a cluster under load, each with 64 streams whose tokens must not change."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tests.cluster_hosts.load import Differences, Load, StreamResult, differences
from tests.cluster_hosts.served import Served, living_nodes, unserved

NUM_STREAMS = 64
NUM_TOKENS = 400
UNDER_WAY = 20
"""Tokens that every stream has when it is disturbed."""
LOAD_TIMEOUT_S = 300.0
MOVED_RATE_PER_S = 3000.0  # at twice the rate no move is worth its loading


@dataclass(frozen=True, slots=True)
class Outcome:
    """What streams saw of a disturbance, and what the cluster said of itself afterwards."""

    results: Sequence[StreamResult]
    differences: Differences
    status: dict[str, Any]

    @property
    def stall_s(self) -> float:
        """The longest time in which one of the streams got nothing."""
        return max(result.longest_stall_s() for result in self.results)

    @property
    def errors(self) -> list[str]:
        """How streams ended that did not end well."""
        return [each.error or "no end" for each in self.results if each.reason != "length"]


def undisturbed(served: Served) -> list[StreamResult]:
    """The streams as they should be."""
    load = Load(served.hosts.operator, served.specs(NUM_STREAMS, NUM_TOKENS))
    return load.finish(LOAD_TIMEOUT_S)


def disturbed(
    served: Served, expected: Sequence[StreamResult], disturb: Callable[[], object]
) -> Outcome:
    """The same streams, disturbed when all are under way; a model at least is in the middle."""
    load = Load(served.hosts.operator, served.specs(NUM_STREAMS, NUM_TOKENS))
    load.wait_for_tokens(UNDER_WAY)
    disturb()
    results = load.finish(LOAD_TIMEOUT_S)
    return Outcome(results, differences(expected, results), served.status())


def controller_killed(served: Served, expected: Sequence[StreamResult]) -> Outcome:
    """kill -9 of the controller."""
    return disturbed(served, expected, served.kill_controller)


def link_cut(served: Served, expected: Sequence[StreamResult]) -> Outcome:
    """The first worker's link is cut, and stays so; the status is that of the cluster without."""
    worker, other = served.hosts.workers
    outcome = disturbed(served, expected, lambda: served.hosts.network.cut(worker))
    rest = {served.hosts.head.ip, other.ip}
    status = served.wait_for_status(lambda state: _is_whole(state, rest))
    return Outcome(outcome.results, outcome.differences, status)


def link_restored(served: Served) -> dict[str, Any]:
    """The first worker's link works again; the status when it serves again."""
    worker = served.hosts.workers[0]
    served.hosts.network.restore(worker)
    served.hosts.wait_for_nodes(served.hosts.nodes)
    everything = {host.ip for host in served.hosts.nodes}
    return served.wait_for_status(
        lambda state: (
            _is_whole(state, everything)
            and worker.ip in {unit["node"] for unit in state["units"] if unit["healthy"]}
        )
    )


def host_killed(served: Served, expected: Sequence[StreamResult]) -> Outcome:
    """The second worker loses its power; the status is that of the cluster without."""
    first, worker = served.hosts.workers
    outcome = disturbed(served, expected, lambda: served.hosts.network.kill(worker))
    rest = {served.hosts.head.ip, first.ip}
    status = served.wait_for_status(lambda state: _is_whole(state, rest))
    return Outcome(outcome.results, outcome.differences, status)


@dataclass(frozen=True, slots=True)
class Move:
    """A change of rates applied under load. before, after: statuses; printed: what `up` said."""

    outcome: Outcome
    before: dict[str, Any]
    after: dict[str, Any]
    printed: str


def rate_changed(served: Served, expected: Sequence[StreamResult], model: str) -> Move:
    """The file says another rate for `model`; `up` applies it while all streams run."""
    before = served.status()
    served.write_config({model: MOVED_RATE_PER_S})
    said: list[str] = []

    def apply() -> None:
        said.append(served.up().stdout)

    applying = threading.Thread(target=apply)
    outcome = disturbed(served, expected, applying.start)
    applying.join()
    return Move(outcome, before, served.status(), said[0] if said else "")


def _is_whole(state: dict[str, Any], alive: set[str]) -> bool:
    """Exactly these nodes are alive, and every model is served on one of them."""
    return living_nodes(state) == alive and not unserved(state) and bool(state["healthy"])
