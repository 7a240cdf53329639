"""Several hosts under load: stalls of streams after a failure, and lost tokens.

Three hosts made of namespaces, `ray up cluster.yaml`, `muxcluster up` with six tiny models, 64
greedy streams through the head's ingress (tests/cluster_hosts). Needs root, iproute2, sshd, rsync.
`--quick` leaves the killed host out.
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
from tests.cluster_hosts.served import Served

GOAL_S = 15.0
MOVED = "llama-a"


@contextmanager
def cluster(folder: Path) -> Iterator[Served]:
    """A cluster that serves."""
    with RayHosts(folder / "hosts") as hosts:
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
    if (reason := why_not()) is not None:
        cannot_run(reason)
    with tempfile.TemporaryDirectory(prefix="mux-") as folder, cluster(Path(folder)) as served:
        outcomes = run(served, is_quick=bench.options.quick)
    names = {"link_cut": "stall_s_link_cut", "host_killed": "stall_s_host_killed"}
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
