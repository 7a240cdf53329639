"""muxcluster over hosts, under load: nothing that is accepted is lost, whatever goes away.

One cluster goes through all of it, so the tests stand in the order of what happens.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from muxcluster import __version__
from tests.cluster_hosts import scenarios
from tests.cluster_hosts.batches import BatchOnHosts
from tests.cluster_hosts.load import Differences, Load, StreamResult
from tests.cluster_hosts.namespaces import why_not
from tests.cluster_hosts.ray_hosts import RayHosts
from tests.cluster_hosts.redis import why_no_redis
from tests.cluster_hosts.scenarios import NEXT_VERSION, NUM_STREAMS, NUM_TOKENS, Outcome
from tests.cluster_hosts.served import GPUS_IN_USE, Served, living_nodes, nodes_of_model, unserved

pytestmark = [
    pytest.mark.hosts,
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
    pytest.mark.timeout(900),
]

needs_redis = pytest.mark.skipif(why_no_redis() is not None, reason=str(why_no_redis()))
NUM_LINES = 1200

INTRUDER = """
import json, time
import zmq
from zmq.utils.monitor import parse_monitor_message

NAMES = {{getattr(zmq, name): name for name in dir(zmq) if name.startswith("EVENT_")}}
seen = []
for is_locked in (False, True):
    socket = zmq.Context.instance().socket(zmq.DEALER)
    socket.linger = 0
    if is_locked:
        socket.curve_publickey, socket.curve_secretkey = zmq.curve_keypair()
        socket.curve_serverkey, _ = zmq.curve_keypair()
    monitor = socket.get_monitor_socket()
    socket.connect("{endpoint}")
    try:
        for _ in range(100):
            socket.send_multipart([b"", b"x" * 100], flags=zmq.NOBLOCK)
    except zmq.Again:
        pass  # the unit has already hung up
    events, end = [], time.monotonic() + 2.0
    while time.monotonic() < end:
        if monitor.poll(100):
            events.append(NAMES[parse_monitor_message(monitor.recv_multipart())["event"]])
        if socket.poll(0):
            events.append("answer")
    seen.append(events)
    socket.disable_monitor()
    socket.close()
print(json.dumps(seen))
"""


@pytest.fixture(scope="module")
def served(ray_hosts: RayHosts, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    served = Served(ray_hosts, tmp_path_factory.mktemp("served"))
    served.up()
    yield served
    if served.hosts.head.is_up:
        served.muxcluster("down --yes", timeout_s=120.0)


@pytest.fixture(scope="module")
def expected(served: Served) -> Sequence[StreamResult]:
    return scenarios.undisturbed(served)


@dataclass(frozen=True, slots=True)
class HeadKilled:
    """What was seen while the head was killed amid streams and a batch, and came back.

    running: by streams that ran then; new: by those that began while it was away; returning: while
    it came back. before, after: the units' processes. done: lines of the batch that had results
    when it was killed.
    """

    running: Outcome
    new: Outcome
    returning: Outcome
    before: dict[str, set[int]]
    after: dict[str, set[int]]
    status: dict[str, Any]
    batch: BatchOnHosts
    done: int


@pytest.fixture(scope="module")
def head_killed(served: Served, expected: Sequence[StreamResult]) -> HeadKilled:
    begun: list[tuple[BatchOnHosts, int]] = []

    def begin() -> None:
        """A batch amid the streams; the head dies as soon as there are results."""
        batch = BatchOnHosts(served, served.hosts.workers[0], NUM_LINES)
        begun.append((batch, batch.wait_until(lambda state: state["completed"] > 0)["completed"]))

    before = served.unit_processes()
    running, new = scenarios.head_killed(served, expected, begin)
    returning = scenarios.head_restored(served, expected)
    status = scenarios.whole(served)
    after = served.unit_processes()
    return HeadKilled(running, new, returning, before, after, status, *begun[0])


def assert_nobody_saw_more_than_a_pause(outcome: Outcome) -> None:
    assert outcome.errors == []
    assert outcome.differences == Differences(0, 0)


def test_a_plan_for_all_that_ray_declares(served: Served) -> None:
    """`cluster.nodes: auto`: the nodes, their GPUs and kinds come from Ray."""
    head = served.hosts.head
    config = (head.home / "muxcluster.yaml").read_text()
    start, end = config.index("nodes:"), config.index("models:")
    config = config[:start] + "nodes: auto\n" + config[end:]
    (head.home / "auto.yaml").write_text(config.replace("rate: 300.0", "rate: 3000.0"))
    said = served.muxcluster("up auto.yaml --dry-run --json").checked()
    planned = json.loads(said.stdout)["plan"]["units"]
    used = {unit["node"] for unit in planned}
    assert used == {worker.ip for worker in served.hosts.workers}
    assert sum(len(unit["gpus"]) for unit in planned) > 2 * GPUS_IN_USE


def test_every_model_is_served_and_streams_end(
    served: Served, expected: Sequence[StreamResult]
) -> None:
    assert unserved(served.status()) == set()
    assert len({unit["node"] for unit in served.status()["units"]}) == 2
    assert {result.reason for result in expected} == {"length"}
    assert [len(result.tokens) for result in expected] == [NUM_TOKENS] * NUM_STREAMS


def test_the_token_channel_is_closed_to_a_stranger(
    served: Served, expected: Sequence[StreamResult]
) -> None:
    """Whose socket reaches a unit's port, and gets no further than the handshake."""
    head, worker = served.hosts.head, served.hosts.workers[0]
    table = worker.run("ss -Htnp state established").checked().stdout
    used = re.findall(rf"{worker.ip}\]?:(\d+) \S*{head.ip}\]?:\d+ .*ray::UnitHost", table)
    listening = worker.run("ss -Htlnp").checked().stdout
    ports = {port for port in used if re.search(rf":{port} .*ray::UnitHost", listening)}
    assert ports, f"the head's ingress has no line to {worker.name}: {table}"
    load = Load(served.hosts.operator, served.specs(12, NUM_TOKENS))
    for port in ports:
        endpoint = f"tcp://{worker.ip}:{port}"
        said = served.hosts.python(served.hosts.stranger, INTRUDER.format(endpoint=endpoint))
        for events in json.loads(said.checked().stdout):
            assert "EVENT_CONNECTED" in events and "EVENT_HANDSHAKE_SUCCEEDED" not in events
            assert "answer" not in events
    found = load.finish(scenarios.LOAD_TIMEOUT_S)
    assert [each.tokens for each in found] == [each.tokens for each in expected[:12]]


def test_up_again_changes_nothing(served: Served) -> None:
    before = [unit["id"] for unit in served.status()["units"]]
    said = served.up().stdout
    assert "nothing to change" in said
    assert [unit["id"] for unit in served.status()["units"]] == before


def test_a_bad_file_changes_nothing(served: Served) -> None:
    before = [unit["id"] for unit in served.status()["units"]]
    (served.hosts.head.home / "bad.yaml").write_text("models: [{name: a, pth: models/llama-a}]\n")
    refused = served.muxcluster("up bad.yaml --yes")
    assert refused.returncode == 2
    assert "pth" in refused.stdout + refused.stderr
    assert [unit["id"] for unit in served.status()["units"]] == before


def test_the_controller_is_killed(served: Served, expected: Sequence[StreamResult]) -> None:
    before = [unit["id"] for unit in served.status()["units"]]
    outcome = scenarios.controller_killed(served, expected)
    assert_nobody_saw_more_than_a_pause(outcome)
    assert [unit["id"] for unit in served.status()["units"]] == before


def test_an_ingress_is_killed(served: Served, expected: Sequence[StreamResult]) -> None:
    """Its own streams are cut, none of them cleanly; another's do not notice."""
    own, other = served.hosts.workers
    # Twice as long: on an idle machine a short one ends while the others are waited for.
    cut = Load(served.hosts.operator, served.specs(8, 2 * NUM_TOKENS, own))
    kept = Load(served.hosts.operator, served.specs(8, NUM_TOKENS, other))
    for load in (cut, kept):
        load.wait_for_tokens(scenarios.UNDER_WAY)
    served.kill_ingress(own)
    assert {result.reason for result in cut.finish(60.0)} == {None}
    found = kept.finish(scenarios.LOAD_TIMEOUT_S)
    assert [each.tokens for each in found] == [each.tokens for each in expected[:8]]


def test_a_changed_rate_moves_a_model(served: Served, expected: Sequence[StreamResult]) -> None:
    move = scenarios.rate_changed(served, expected, "llama-a")
    assert_nobody_saw_more_than_a_pause(move.outcome)
    places = [
        {
            name: nodes_of_model(state, name)
            for name in ("llama-a", "llama-b", "qwen2-c", "qwen3-d", "opt-e", "mistral-f")
        }
        for state in (move.before, move.after)
    ]
    assert [unit["id"] for unit in move.before["units"]] != [
        unit["id"] for unit in move.after["units"]
    ], places
    assert unserved(move.after) == set()


@needs_redis
def test_streams_of_other_hosts_go_on_without_a_head(head_killed: HeadKilled) -> None:
    """Those that run when it dies, those that begin while it is away, and while it comes back."""
    for outcome in (head_killed.running, head_killed.new, head_killed.returning):
        assert_nobody_saw_more_than_a_pause(outcome)


@needs_redis
def test_no_unit_restarts_with_the_head(served: Served, head_killed: HeadKilled) -> None:
    assert all(head_killed.before.values())
    assert head_killed.after == head_killed.before
    nodes = {unit["node"] for unit in head_killed.status["units"]}
    assert nodes == {host.ip for host in served.hosts.workers}


@needs_redis
def test_the_head_serves_again(
    served: Served, expected: Sequence[StreamResult], head_killed: HeadKilled
) -> None:
    found = scenarios.undisturbed(served)
    assert [each.tokens for each in found] == [each.tokens for each in expected]
    assert "nothing to change" in served.up().stdout


@needs_redis
def test_a_batch_goes_on_and_has_each_line_once(head_killed: HeadKilled) -> None:
    assert 0 < head_killed.done < NUM_LINES, "give it more lines"
    batch = head_killed.batch
    state = batch.wait_until(lambda state: state["status"] == "completed")
    assert (state["completed"], state["failed"]) == (NUM_LINES, 0)
    assert Counter(batch.line_ids()) == Counter(f"line-{index}" for index in range(NUM_LINES))


def test_another_version_rolls_through_the_cluster(
    served: Served, expected: Sequence[StreamResult]
) -> None:
    """Controller, ingresses and units are replaced one after the other."""
    before = served.unit_processes()
    outcome, said = scenarios.upgraded(served, expected, NEXT_VERSION)
    assert_nobody_saw_more_than_a_pause(outcome)
    assert f"the controller: {NEXT_VERSION} in the place of {__version__}" in said, said
    assert unserved(outcome.status) == set()
    after = served.unit_processes()
    for host, pids in after.items():
        assert pids and not pids & before[host]
    for host in served.hosts.nodes:
        asked = f"import httpx; print(httpx.get('{served.url_of(host)}/version').json())"
        assert NEXT_VERSION in served.hosts.python(served.hosts.operator, asked).checked().stdout


def test_a_workers_link_is_cut(served: Served, expected: Sequence[StreamResult]) -> None:
    outcome = scenarios.link_cut(served, expected)
    assert_nobody_saw_more_than_a_pause(outcome)
    cut = served.hosts.workers[0].ip
    assert cut not in {unit["node"] for unit in outcome.status["units"] if unit["healthy"]}
    state = scenarios.link_restored(served)
    assert living_nodes(state) == {host.ip for host in served.hosts.nodes}


def test_a_worker_is_killed(served: Served, expected: Sequence[StreamResult]) -> None:
    outcome = scenarios.host_killed(served, expected)
    assert_nobody_saw_more_than_a_pause(outcome)
    assert {unit["node"] for unit in outcome.status["units"]} == {served.hosts.workers[0].ip}


def test_down_leaves_no_process_on_any_host(served: Served) -> None:
    served.muxcluster("down --ray --yes", timeout_s=120.0).checked()
    served.hosts.ray("down ~/cluster.yaml -y").checked()
    served.hosts.wait_for_no_process()
