"""Tenants that wait for one model get equal tokens, and each keeps its own order."""

import random
from collections import Counter, defaultdict
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muxcluster.core.request import ServiceClass
from muxcluster.scheduling.state.turns import TenantTurns
from tests.amounts import examples
from tests.scheduling.rig import SOME_LANES, Rig, model_spec, request, unit_spec
from tests.scheduling.test_packings import ALONE
from tests.scheduling.test_random_runs import WORKERS, check_ends, random_requests, run_to_the_end


@dataclass(frozen=True)
class Asked:
    tenant: str
    cost: int
    error: int = 0  # tokens that it takes more than expected


ASKED = st.builds(Asked, st.sampled_from("abc"), st.integers(1, 50))
WRONG = st.builds(Asked, st.sampled_from("ab"), st.integers(20, 50), st.integers(-19, 30))


class Server:
    """Serves one request after the other, in the order of their starts."""

    def __init__(self) -> None:
        self.turns = TenantTurns()
        self.waiting: list[tuple[int, int, Asked]] = []
        self.served: list[Asked] = []
        self._num_come = 0

    def come(self, asked: Asked) -> None:
        start = self.turns.begin(asked.tenant, asked.cost)
        self.waiting.append((start, self._num_come, asked))
        self._num_come += 1

    def serve(self) -> Asked:
        first = min(self.waiting, key=lambda each: each[:2])
        self.waiting.remove(first)
        asked = first[2]
        self.turns.admit(asked.tenant, first[0], asked.cost)
        self.turns.correct(asked.tenant, asked.error)
        self.served.append(asked)
        return asked

    def num_waiting(self, tenant: str) -> int:
        return sum(asked.tenant == tenant for _, _, asked in self.waiting)


@given(st.lists(ASKED, min_size=2, max_size=80), st.randoms(use_true_random=False))
def test_tenants_with_work_waiting_differ_by_a_request_of_each(
    many: list[Asked], rng: random.Random
) -> None:
    """The bound that the authors of start-time fair queueing prove."""
    server = Server()
    todo = list(many)
    served: dict[tuple[str, str], Counter[str]] = {}
    longest = {name: max((a.cost for a in many if a.tenant == name), default=0) for name in "abc"}
    while todo or server.waiting:
        while todo and (not server.waiting or rng.random() < 0.6):
            server.come(todo.pop(0))
        both = [
            (one, other)
            for one in "abc"
            for other in "abc"
            if one < other and server.num_waiting(one) and server.num_waiting(other)
        ]
        # only over times in which both wait does the bound hold
        served = {pair: served.get(pair, Counter()) for pair in both}
        asked = server.serve()
        for (one, other), tokens in served.items():
            tokens[asked.tenant] += asked.cost
            assert abs(tokens[one] - tokens[other]) <= longest[one] + longest[other]


@given(st.lists(WRONG, max_size=60), st.randoms(use_true_random=False))
def test_a_tenants_requests_keep_their_order_whatever_they_really_take(
    many: list[Asked], rng: random.Random
) -> None:
    server = Server()
    todo, came = list(many), defaultdict(list)
    while todo or server.waiting:
        if todo and (not server.waiting or rng.random() < 0.5):
            came[todo[0].tenant].append(todo[0])
            server.come(todo.pop(0))
        else:
            server.serve()
    for tenant, mine in came.items():
        assert [asked for asked in server.served if asked.tenant == tenant] == mine


def test_one_that_takes_more_than_expected_pays_with_its_next() -> None:
    server = Server()
    for _ in range(3):
        server.come(Asked("a", 10, error=90))
        server.come(Asked("b", 10))
        server.serve()
        server.serve()
    for _ in range(20):
        server.come(Asked("a", 10))
        server.come(Asked("b", 10))
    first = [server.serve().tenant for _ in range(12)]
    assert first.count("b") >= 9


def test_who_comes_is_next_and_who_was_away_has_saved_nothing() -> None:
    server = Server()
    for _ in range(500):
        server.come(Asked("a", 7))
    for _ in range(100):
        server.serve()
    for _ in range(50):
        server.come(Asked("b", 7))
    assert server.serve().tenant == "b"
    assert Counter(server.serve().tenant for _ in range(40))["b"] in (19, 20, 21)


def run(packing: str, lane: str, **fields) -> list[str]:
    """The order in which 40 requests of one tenant, then 5 of another, get their first tokens."""
    spec = unit_spec([model_spec("a", max_seqs=2)], workers=ALONE, lane=lane, packing=packing)
    rig = Rig(spec)
    rig.add(*(request(f"many-{i:02}", tenant="many", **fields) for i in range(40)))
    for _ in range(6):
        rig.step()
    few = [request(f"few-{i}", tenant="few", **fields) for i in range(5)]
    rig.add(*few)
    rig.run()
    rig.check_outputs(few)
    rig.check_empty()
    return sorted(rig.first_token_s, key=lambda name: (rig.first_token_s[name], name))


def test_a_backlog_of_one_tenant_does_not_hold_up_another() -> None:
    for lane in ("adbs", "mixed", "temporal"):
        order = run("priority", lane)
        last = max(order.index(f"few-{i}") for i in range(5))
        # in turns from when they came; few of the others had begun by then
        assert last < 20, (lane, order)
        assert [name for name in order if name[0] == "m"] == [f"many-{i:02}" for i in range(40)]


def test_batches_and_packings_by_arrival_know_no_tenants() -> None:
    fcfs = run("fcfs", "temporal")
    batch = run("priority", "temporal", service_class=ServiceClass.BATCH)
    for order in (fcfs, batch):
        assert order[-5:] == [f"few-{i}" for i in range(5)]


def test_aborted_requests_give_their_turns_back() -> None:
    """As those of clients that give up and try again."""
    models = [model_spec("a", max_seqs=1)]
    rig = Rig(unit_spec(models, workers=ALONE, lane="temporal", packing="priority"))
    rig.add(request("busy", tenant="c", num_output=30))
    rig.step()
    rig.add(*(request(f"b-{i}", tenant="b") for i in range(4)))
    rig.add(*(request(f"a-{i}", tenant="a") for i in range(20)))
    for i in range(20):
        rig.abort(f"a-{i}")
    rig.add(request("a-20", tenant="a"))
    rig.run()
    order = sorted(rig.first_token_s, key=lambda name: rig.first_token_s[name])
    assert order == ["busy", "b-0", "a-20", "b-1", "b-2", "b-3"]


def test_nothing_is_remembered_of_who_took_what_once_nobody_waits() -> None:
    models = [model_spec("a", max_seqs=1)]
    rig = Rig(unit_spec(models, workers=ALONE, lane="temporal", packing="priority"))
    rig.add(*(request(f"x-{i}", tenant=f"tenant-{i}") for i in range(30)))
    rig.run()
    assert rig.scheduler._models["a"].turns._tenants == {}


def test_five_tenants_of_very_different_eagerness_get_the_same() -> None:
    models = [model_spec("a", max_seqs=3)]
    rig = Rig(unit_spec(models, workers=ALONE, lane="adbs", packing="priority"), checks=False)
    rng = random.Random(3)
    # the most eager one first, all at once
    num_prompt: dict[str, int] = {}
    for number, count in enumerate((200, 150, 100, 70, 40)):
        for name in (f"{number}-{i}" for i in range(count)):
            num_prompt[name] = rng.randint(5, 20)
            sizes = {"num_prompt": num_prompt[name], "num_output": rng.randint(2, 20)}
            rig.add(request(name, tenant=f"t{number}", **sizes))
    while sum(name.startswith("4-") for name in rig.ends) < 40:
        rig.step()
    got = Counter({str(number): 0 for number in range(5)})
    for name in rig.ends:
        got[name[0]] += len(rig.tokens[name]) + num_prompt[name]
    fair = sum(got.values()) / 5
    assert min(got.values()) >= 0.9 * fair, got


@pytest.mark.parametrize("lane", SOME_LANES)
def test_turns_are_counted_right_whatever_happens(lane: str) -> None:
    """Requests come, end, are aborted, fail and lose their memory; the rig checks after each."""
    for seed in range(examples(3, 100)):
        rng = random.Random(f"turns {lane} {seed}")
        spec = unit_spec(
            lane=lane,
            packing="priority",
            num_blocks=rng.choice((36, 60, 121)),
            workers=rng.choice(WORKERS),
            token_budget=rng.choice((5, 16, 64)),
        )
        rig = Rig(spec, seed)
        requests = [
            replace(each, tenant=rng.choice(("", "a", "b")))
            for each in random_requests(rng, seed, 30)
        ]
        check_ends(rig, run_to_the_end(rng, rig, requests))
        rig.check_empty()
        for model in rig.scheduler._models.values():
            model.turns.check({})
