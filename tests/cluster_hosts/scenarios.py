"""What may befall a cluster under load, each with 64 streams whose tokens must not change."""

import re
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from muxcluster import __version__
from tests.cluster_hosts.hosts import Host
from tests.cluster_hosts.load import Differences, Load, StreamResult, differences
from tests.cluster_hosts.served import Served, living_nodes, unserved

NUM_STREAMS = 64
NUM_TOKENS = 400
UNDER_WAY = 20
"""Tokens that every stream has when it is disturbed."""
LOAD_TIMEOUT_S = 300.0
MOVED_RATE_PER_S = 3000.0  # at twice the rate no move is worth its loading
NO_DIFFERENCES = Differences(0, 0)
NEXT_VERSION = f"{__version__}.1"


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


def undisturbed(served: Served, *hosts: Host) -> list[StreamResult]:
    """The streams as they should be. hosts: whose ingresses they use in turn; the head's if none
    is given."""
    return _begun(served, hosts).finish(LOAD_TIMEOUT_S)


def disturbed(
    served: Served, expected: Sequence[StreamResult], disturb: Callable[[], object]
) -> Outcome:
    """The same streams, disturbed when all are under way; a model at least is in the middle."""
    load = _begun(served)
    load.wait_for_tokens(UNDER_WAY)
    disturb()
    return _outcome(load, expected, served.status)


def head_killed(
    served: Served, expected: Sequence[StreamResult], look: Callable[[], object] = lambda: None
) -> tuple[Outcome, Outcome]:
    """The head loses its power: what streams at the workers' ingresses see that run then, and those
    that begin afterwards. expected: at these ingresses. look: at something just before. No status:
    the head would say it."""
    hosts = served.hosts
    running = _begun(served, hosts.workers)
    running.wait_for_tokens(UNDER_WAY)
    look()
    hosts.network.kill(hosts.head)
    first = _outcome(running, expected)
    return first, _outcome(_begun(served, hosts.workers), expected)


def head_restored(served: Served, expected: Sequence[StreamResult]) -> Outcome:
    """The head has power again, and `ray up` starts it, amid streams as in `head_killed`."""
    hosts = served.hosts

    def restore() -> None:
        if not hosts.head.is_up:
            hosts.network.boot(hosts.head)
        hosts.up_again()
        hosts.wait_for_nodes(hosts.nodes)

    return _throughout(served, expected, restore)


def controller_killed(served: Served, expected: Sequence[StreamResult]) -> Outcome:
    """kill -9 of the controller."""
    return disturbed(served, expected, served.kill_controller)


def whole(served: Served) -> dict[str, Any]:
    """The status, once every node is alive and every model is served."""
    everything = {host.ip for host in served.hosts.nodes}
    return served.wait_for_status(lambda state: _is_whole(state, everything))


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


def upgraded(served: Served, expected: Sequence[StreamResult], version: str) -> tuple[Outcome, str]:
    """Another version lies on all nodes; `up` brings the cluster to it amid streams at the workers'
    ingresses. Returns what these saw and what `up` said."""
    for host in served.hosts.nodes:
        file = host.home / "muxcluster" / "muxcluster" / "__init__.py"
        text, count = re.subn(
            r"(?m)^__version__ = .*$", f'__version__ = "{version}"', file.read_text()
        )
        assert count == 1
        file.write_text(text)
    said: list[str] = []
    outcome = _throughout(served, expected, lambda: said.append(served.up().stdout))
    return Outcome(outcome.results, outcome.differences, served.status()), said[0]


def _begun(served: Served, hosts: Sequence[Host] = ()) -> Load:
    specs = served.specs(NUM_STREAMS, NUM_TOKENS)
    if hosts:
        urls = [served.url_of(hosts[index % len(hosts)]) for index in range(len(specs))]
        specs = [replace(spec, url=url) for spec, url in zip(specs, urls, strict=True)]
    return Load(served.hosts.operator, specs)


def _outcome(
    load: Load,
    expected: Sequence[StreamResult],
    status: Callable[[], dict[str, Any]] = dict,
) -> Outcome:
    results = load.finish(LOAD_TIMEOUT_S)
    return Outcome(results, differences(expected, results), status())


def _throughout(
    served: Served, expected: Sequence[StreamResult], act: Callable[[], object]
) -> Outcome:
    """The streams at the workers' ingresses, again and again while `act` runs: what those saw that
    saw most."""
    is_done = threading.Event()

    def streamed() -> list[Outcome]:
        outcomes = [_outcome(_begun(served, served.hosts.workers), expected)]
        while not is_done.is_set():
            outcomes.append(_outcome(_begun(served, served.hosts.workers), expected))
        return outcomes

    with ThreadPoolExecutor(1) as executor:
        streaming = executor.submit(streamed)
        try:
            act()
        finally:
            is_done.set()
        outcomes = streaming.result()
    bad = [each for each in outcomes if each.errors or each.differences != NO_DIFFERENCES]
    return max(bad or outcomes, key=lambda outcome: outcome.stall_s)


def _is_whole(state: dict[str, Any], alive: set[str]) -> bool:
    """Exactly these nodes are alive, and every model is served on one of them."""
    return living_nodes(state) == alive and not unserved(state) and bool(state["healthy"])
