"""A batch job's greedy answers: the same tokens in every order and beside interactive requests."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from muxcluster.config.facts import read_facts
from muxcluster.core.request import Request, ServiceClass
from muxcluster.core.unitspec import UnitSpec
from muxcluster.offline.choice import Unplanned
from muxcluster.offline.feed.feeder import BatchFeeder, Room
from muxcluster.offline.order.orders import ORDERS
from muxcluster.offline.prefix.prompts import token_prompts
from muxcluster.placement.cost.resources import resource_model
from muxcluster.placement.hardware import gpu_named
from tests.blocks import scaled
from tests.engine.conftest import ModelBuilder
from tests.engine.stepping import SteppedUnit
from tests.engine.units import greedy, prompts, request_of, spec_of

VOCABULARY = 512
NUM_COLUMNS = 32
"""Memory for three prompts at their longest that share nothing."""
SHARED = (scaled(40, 8), scaled(16, 8))
"""Tokens that a group shares, and that half of it shares beyond."""
LONGEST_OWN, LONGEST_BESIDE = scaled(20, 8), scaled(50, 8)
"""Tokens that no group shares: of a request of the job, and of an interactive one."""
Answers = Mapping[str, Sequence[int]]


def _job_prompts(seed: int = 0) -> list[list[int]]:
    """Four groups of six, mixed; each request has 1 to `LONGEST_OWN` tokens of its own."""
    rng = random.Random(seed)

    def some(count: int) -> list[int]:
        return [rng.randrange(10, VOCABULARY) for _ in range(count)]

    found = []
    for _ in range(4):
        prefix, halves = some(SHARED[0]), [some(SHARED[1]), []]
        found += [prefix + halves[i % 2] + some(rng.randint(1, LONGEST_OWN)) for i in range(6)]
    rng.shuffle(found)
    return found


def _num_output(number: int) -> int:
    return 4 + number % 9


class _Run:
    """A job that is fed to a unit, with two interactive requests more at every third step."""

    def __init__(self, spec: UnitSpec, asked: Sequence[list[int]], order: str) -> None:
        self.unit = SteppedUnit(spec)
        self._spec = spec
        self._name = spec.models[0].name
        self._asked = asked
        self._size_bytes = float(spec.num_blocks * spec.block_bytes)
        self._feeder = BatchFeeder(self._planned(asked).with_tree(), order)
        self._open: set[int] = set()
        self._started: set[int] = set()

    def _planned(self, asked: Sequence[list[int]]) -> Unplanned:
        model = self._spec.models[0]
        shape, itemsize = read_facts(Path(model.path)).shape, model.shape.itemsize
        return Unplanned(
            token_prompts([np.array(each, dtype=np.int32) for each in asked]),
            np.array([_num_output(number) for number in range(len(asked))]),
            resource_model(shape, gpu_named("A100-80GB"), 1, itemsize),
            self._size_bytes,
            model.shape.block_tokens(self._spec.block_bytes),
        )

    def answers(self, beside: Sequence[Request]) -> Answers:
        """To the end of all; the tokens by request id."""
        waiting, num_steps = list(beside), 0
        while len(self._feeder) or self._open or waiting:
            if num_steps % 3 == 0:
                self.unit.add([waiting.pop() for _ in range(min(2, len(waiting)))])
            self._feed(float(num_steps))
            assert self.unit.step() or waiting
            self._tell()
            num_steps += 1
        while self.unit.step():
            pass
        return self.unit.tokens

    def _feed(self, now: float) -> None:
        space = self.unit.scheduler.batch_memory.space(self._name)
        other_bytes = float(space.other_blocks * self._spec.block_bytes)
        room = Room(now, self._size_bytes, other_bytes, self._spec.scheduler.token_budget)
        for fed in self._feeder.take(room):
            sampling = greedy(_num_output(fed.number))
            request = request_of(f"{self._name}/{fed.number}", self._asked[fed.number], sampling)
            self.unit.add([replace(request, service_class=ServiceClass.BATCH)])
            self._open.add(fed.number)

    def _tell(self) -> None:
        for number in sorted(self._open):
            count = len(self.unit.tokens[f"{self._name}/{number}"])
            if count and number not in self._started:
                self._started.add(number)
                self._feeder.started(number)
            if count == _num_output(number):
                self._feeder.ended(number, count)
                self._open.remove(number)


def test_answers_depend_neither_on_the_order_nor_on_who_else_is_there(tiny: ModelBuilder) -> None:
    path = tiny("llama")
    spec = spec_of([path], lane="mixed", partition="none", num_columns=NUM_COLUMNS, max_seqs=8)
    spec = replace(spec, scheduler=replace(spec.scheduler, token_budget=scaled(64, 8)))
    asked, name = _job_prompts(), path.name
    ten = greedy(10)
    others = prompts(name, 16, VOCABULARY, longest=LONGEST_BESIDE)
    beside = [
        # every other one begins with what a group of the job shares
        request_of(f"{name}/now/{number}", asked[number][: SHARED[0] * (number % 2)] + prompt, ten)
        for number, prompt in enumerate(others.values())
    ]
    found: dict[tuple[str, int], Answers] = {}
    steps: set[tuple[int, ...]] = set()
    saved: dict[str, int] = {}
    for order in ORDERS:
        for requests in ([], beside):
            run = _Run(spec, asked, order)
            found[order, len(requests)] = run.answers(requests)
            steps.add(tuple(len(job.rows) for job in run.unit.jobs))
            (stats,) = run.unit.scheduler.stats(0.0, "u").models
            saved.setdefault(order, stats.prefix_hits)
    first = found["fcfs", 0]
    assert len(first) == len(asked)
    assert len({tuple(tokens) for tokens in first.values()}) == len(asked)
    for answers in found.values():
        assert {key: answers[key] for key in first} == first
    with_others = [answers for (_, count), answers in found.items() if count]
    assert len(with_others[0]) == len(asked) + len(beside)
    assert all(answers == with_others[0] for answers in with_others)
    # they really ran in different company, and what they share was computed more or less often
    assert len(steps) > len(ORDERS)
    assert saved["batchllm"] == saved["dfs"] > saved["fcfs"] > 0
