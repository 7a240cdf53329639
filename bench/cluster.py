"""Several hosts under load: stalls of streams after a failure, and lost tokens.

Three hosts made of namespaces, `ray up cluster.yaml`, `muxcluster up` with six tiny models, 64
greedy streams through the head's ingress, or the workers' where the head is killed or the version
changes (tests/cluster_hosts). Needs root, iproute2, sshd, rsync, redis-server. `--quick` leaves the
killed hosts and the upgrade out.
"""

import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# In the place of this folder, whose http.py would hide the standard library's.
sys.path[0] = str(ROOT)

from bench.harness import Bench, Claim, cannot_run, make_parser
from tests.cluster_hosts import scenarios
from tests.cluster_hosts.load import StreamResult
from tests.cluster_hosts.namespaces import why_not
from tests.cluster_hosts.ray_hosts import RayHosts
from tests.cluster_hosts.redis import why_no_redis
from tests.cluster_hosts.served import Served

GOAL_S = 15.0
MOVED = "llama-a"


@contextmanager
def cluster(folder: Path, *, has_redis: bool) -> Iterator[Served]:
    """A cluster that serves. has_redis: its head may die."""
    with RayHosts(folder / "hosts", has_redis=has_redis) as hosts:
        hosts.make_token()
        hosts.up()
        hosts.wait_for_nodes(hosts.nodes)
        served = Served(hosts, folder)
        served.up()
        yield served


def run(served: Served, *, is_quick: bool) -> dict[str, scenarios.Outcome]:
    """All scenarios, by name; "undisturbed" is a second run of the expected streams."""
    expected = scenarios.undisturbed(served)
    outcomes = {
        "undisturbed": scenarios.disturbed(served, expected, lambda: None),
        "controller_killed": scenarios.controller_killed(served, expected),
    }
    move = scenarios.rate_changed(served, expected, MOVED)
    print(move.printed)
    outcomes["move"] = move.outcome
    if not is_quick:
        outcomes["head_killed"], outcomes["head_away"] = scenarios.head_killed(served, expected)
        outcomes["head_restored"] = scenarios.head_restored(served, expected)
        scenarios.whole(served)
        # last of the two: `ray up`, which starts the head, copies the checkout's version to it
        outcomes["upgrade"], printed = scenarios.upgraded(served, expected, scenarios.NEXT_VERSION)
        print(printed)
    outcomes["link_cut"] = scenarios.link_cut(served, expected)
    if not is_quick:
        scenarios.link_restored(served)
        outcomes["host_killed"] = scenarios.host_killed(served, expected)
    return outcomes


def stalls(results: Sequence[StreamResult]) -> list[float]:
    """The longest stall of each stream, longest first."""
    return sorted((round(each.longest_stall_s(), 3) for each in results), reverse=True)


def main() -> int:
    """Run the scenarios, print and publish; exit code 1 where a stream was harmed."""
    bench = Bench(make_parser(__doc__))
    is_quick = bench.options.quick
    reason = why_not() or (None if is_quick else why_no_redis())
    if reason is not None:
        cannot_run(reason)
    with (
        tempfile.TemporaryDirectory(prefix="mux-") as folder,
        cluster(Path(folder), has_redis=not is_quick) as served,
    ):
        outcomes = run(served, is_quick=is_quick)
    names = {
        "link_cut": "stall_s_link_cut",
        "host_killed": "stall_s_host_killed",
        "head_killed": "stall_s_head_killed",
        "head_restored": "stall_s_head_restored",
        "upgrade": "stall_s_upgrade",
    }
    claims = [
        Claim(claim, outcomes[name].stall_s, "s", GOAL_S)
        for name, claim in names.items()
        if name in outcomes
    ]
    lost = sum(outcome.differences.num_lost for outcome in outcomes.values())
    repeated = sum(outcome.differences.num_repeated for outcome in outcomes.values())
    claims += [
        Claim("move_pause_s", outcomes["move"].stall_s, "s", outcomes["undisturbed"].stall_s),
        Claim("tokens_lost", lost, "tokens", 0),
        Claim("tokens_repeated", repeated, "tokens", 0),
    ]
    errors = {name: outcome.errors for name, outcome in outcomes.items() if outcome.errors}
    for name, outcome in outcomes.items():
        print(f"{name:18} longest stall {outcome.stall_s:5.1f} s, {outcome.differences}")
    bench.publish(
        claims,
        {f"stall_s_{name}": stalls(outcome.results) for name, outcome in outcomes.items()},
        num_streams=scenarios.NUM_STREAMS,
        num_tokens=scenarios.NUM_TOKENS,
        errors=errors,
    )
    return 1 if errors or lost or repeated else 0


if __name__ == "__main__":
    sys.exit(main())
