"""Whom the packings by name take, against orders worked out from outside."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from muxcluster.core.job import Job, Phase, WorkerSpec
from muxcluster.core.request import Request, ServiceClass
from tests.amounts import examples
from tests.scheduling.rig import SOME_LANES, Rig, model_spec, request, unit_spec
from tests.scheduling.test_random_runs import WORKERS, check_ends, random_requests, run_to_the_end

Key = Callable[[Request, int], tuple[int, ...]]
KEYS: dict[str, Key] = {
    "fcfs": lambda asked, order: (order,),
    "priority": lambda asked, order: (
        asked.service_class is ServiceClass.BATCH,
        asked.priority,
        order,
    ),
}
ALONE = (WorkerSpec(0, (1.0,)),)


@dataclass(frozen=True)
class Step:
    """A job on a unit where nothing else ran. Before it, by name: who waited, who held memory."""

    job: Job
    rows: list[str]
    waited: set[str]
    held: set[str]
    preempted: list[str]


class Watch:
    """Steps a rig and keeps book, from outside, of who waits and who holds which row."""

    def __init__(self, packing: str, rng: random.Random, num_blocks: int, **policy) -> None:
        policy = {"lane": "temporal", "token_budget": 64, "packing": packing, **policy}
        models = [model_spec("a", max_seqs=12)]
        self.rig = Rig(unit_spec(models, num_blocks=num_blocks, workers=ALONE, **policy))
        self.asked: dict[str, Request] = {}
        self._rng = rng
        self._holds: dict[int, str] = {}

    def key(self, name: str) -> tuple[Request, int]:
        return self.asked[name], list(self.asked).index(name)

    def steps(self, requests: list[Request]) -> Iterator[Step]:
        """To the end of all requests, which come between jobs."""
        todo = list(requests)
        while todo or self.rig.num_open:
            while todo and (self._rng.random() < 0.4 or not self.rig.num_open):
                self.asked[todo[0].request_id] = todo[0]
                self.rig.add(todo.pop(0))
            yield self._step()

    def _step(self) -> Step:
        rig, held = self.rig, set(self._holds.values())
        waited = set(self.asked) - held - set(rig.ends)
        (job,) = rig.launch()
        self._holds.update({each.row: each.request_id for each in job.admissions})
        rows = [self._holds[row] for row in job.rows.table_rows.tolist()]
        rig.finish()
        preempted = list(rig.preempted)
        rig.preempted.clear()
        gone = {*rig.ends, *preempted}
        self._holds = {row: name for row, name in self._holds.items() if name not in gone}
        return Step(job, rows, waited, held, preempted)


def some_requests(rng: random.Random, count: int, num_output: int = 30) -> list[Request]:
    """Both classes and several priorities in any order."""
    return [
        request(
            f"r{i}",
            num_prompt=rng.randint(1, 30),
            num_output=rng.randint(1, num_output),
            service_class=rng.choice(tuple(ServiceClass)),
            priority=rng.choice((-1, 0, 0, 2)),
            cacheable=False,
        )
        for i in range(count)
    ]


@pytest.mark.parametrize("packing", KEYS)
def test_the_first_in_order_are_admitted_first(packing: str) -> None:
    """Brute force: whoever is admitted comes before all who wait on."""
    num_admitted = num_left = 0
    num_runs = examples(4, 20)
    for seed in range(num_runs):
        rng = random.Random(seed)
        watch = Watch(packing, rng, 400, token_budget=rng.choice((16, 64)))
        for step in watch.steps(some_requests(rng, 25)):
            names = [each.request_id for each in step.job.admissions]
            in_order = sorted(step.waited, key=lambda name: KEYS[packing](*watch.key(name)))
            assert names == in_order[: len(names)]
            num_admitted += len(names)
            num_left += len(in_order) - len(names) if names else 0
    assert num_admitted >= num_runs * 25
    assert num_left > num_runs * 5, "hardly anybody had to wait"


@pytest.mark.parametrize("packing", KEYS)
def test_the_last_in_order_are_preempted(packing: str) -> None:
    """Brute force: nobody runs between two jobs, so victims are the last of all that hold memory.

    They recompute: everything they have got so far is prefilled when they are back.
    """
    num_victims = 0
    for seed in range(examples(15, 40)):
        rng = random.Random(seed)
        watch = Watch(packing, rng, 40)
        sizes: dict[str, int] = {}
        for step in watch.steps(some_requests(rng, 12)):
            victims = step.preempted
            in_order = sorted(step.held, key=lambda name: KEYS[packing](*watch.key(name)))
            assert victims == in_order[::-1][: len(victims)]
            assert not victims or step.job.phase is Phase.DECODE
            for each in step.job.admissions:
                assert len(each.tokens) == sizes.pop(each.request_id, each.num_prompt_tokens)
            for name in victims:
                asked, tokens = watch.asked[name], watch.rig.tokens[name]
                sizes[name] = len(asked.prompt_tokens) + len(tokens)
            num_victims += len(victims)
        assert not sizes
    assert num_victims > examples(7, 20)


def classes_of(watch: Watch, names: list[str]) -> set[ServiceClass]:
    return {watch.asked[name].service_class for name in names}


@pytest.mark.parametrize("lane", ["temporal", "mixed"])
def test_round_robin_alternates_between_classes(lane: str) -> None:
    """With memory for all, a class is passed over only where it has nobody here."""
    num_skipped = num_turns = 0
    for seed in range(20):
        rng = random.Random(seed)
        watch = Watch("round-robin", rng, 2000, lane=lane)
        last = None
        for step in watch.steps(some_requests(rng, 12, num_output=20)):
            (mine,) = classes_of(watch, step.rows)
            others = classes_of(watch, [*step.held, *step.waited]) - {mine}
            if mine is last:
                assert not others
                num_skipped += 1
            else:
                num_turns += 1
            last = mine
    assert num_turns > 200
    assert num_skipped > 20


def test_round_robin_takes_each_class_in_order_of_arrival() -> None:
    rng = random.Random(3)
    watch = Watch("round-robin", rng, 2000)
    admitted: list[str] = []
    for step in watch.steps(some_requests(rng, 40)):
        admitted += [each.request_id for each in step.job.admissions]
    for service in ServiceClass:
        mine = [name for name in admitted if watch.asked[name].service_class is service]
        assert mine == sorted(mine, key=lambda name: int(name[1:]))
        assert len(mine) > 10


@pytest.mark.parametrize("lane", SOME_LANES)
@pytest.mark.parametrize("packing", ["fcfs", "round-robin"])
def test_random_runs_end(packing: str, lane: str) -> None:
    """Aborts, failures, restarts and tiny pools: nobody is lost, nobody waits for ever."""
    for seed in range(examples(4, 30)):
        rng = random.Random(f"{packing} {lane} {seed}")
        spec = unit_spec(
            lane=lane,
            packing=packing,
            num_blocks=rng.choice((36, 60, 90, 200)),
            workers=rng.choice(WORKERS),
            token_budget=rng.choice((5, 16, 64)),
            max_decode_rows=rng.choice((2, 256)),
        )
        rig = Rig(spec, seed, max_steps=rng.choice((1, 4)))
        asked = run_to_the_end(rng, rig, random_requests(rng, seed, 14))
        check_ends(rig, asked)
