"""A plan that feeds units: room from what they say, prefixes pinned before and freed after."""

from dataclasses import replace

import numpy as np

from muxcluster.batch.plan.feeding import FedPlan, FedUnit, PlannedLine
from muxcluster.batch.store.store import Pending
from muxcluster.core.request import PinnedPrefix, Unpin
from muxcluster.offline.blend.resources import resource_model
from muxcluster.offline.choice import Unplanned
from muxcluster.offline.feed.feeder import BatchFeeder
from muxcluster.offline.prefix.prompts import token_prompts
from muxcluster.placement.hardware import GPUS
from muxcluster.scheduling.memory.batch_memory import BatchSpace
from tests.scheduling.rig import model_spec, unit_spec
from tests.sim.cases import SHAPE

RESOURCES = resource_model(SHAPE, GPUS["A100-80GB"])
SPEC = unit_spec([model_spec("a")], token_budget=10_000)
SHARED = 64
NUM_LINES = 6


class _Unit:
    """Says what memory it has, and keeps what it is told."""

    def __init__(self, num_blocks: int) -> None:
        self.space = BatchSpace(num_blocks, 0)
        self.told: list[PinnedPrefix | Unpin] = []
        self.asked_for: str | None = ""

    def pin(self, message: PinnedPrefix | Unpin) -> None:
        self.told.append(message)

    def batch_space(self, model: str | None) -> BatchSpace:
        self.asked_for = model
        return self.space


def _plan(unit: _Unit, order: str = "dfs", model: str = "a", unit_id: str = "u") -> FedPlan:
    """Lines 10, 11, ... of one family."""
    rng = np.random.default_rng(0)
    shared = rng.integers(0, 1000, SHARED)
    tails = [rng.integers(0, 1000, 16) for _ in range(NUM_LINES)]
    asked = [
        PlannedLine(
            Pending(10 + i, 0, 0, model, 1),
            np.concatenate((shared, tail)).astype(np.int32),
            20,
            False,
            "salt",
        )
        for i, tail in enumerate(tails)
    ]
    prompts = token_prompts([each.tokens for each in asked])
    outputs = np.full(NUM_LINES, 20, dtype=np.int64)
    job = Unplanned(prompts, outputs, RESOURCES, 1e12, 16).with_tree()
    feeder = BatchFeeder(job, order, np.full(NUM_LINES, np.nan))
    return FedPlan(feeder, model, asked, [FedUnit(replace(SPEC, unit_id=unit_id), unit)])


def test_all_lines_start_where_there_is_room_and_pins_end_with_the_last() -> None:
    unit = _Unit(10**9)
    plan = _plan(unit)
    lines = [each.line for each in plan.take()]
    assert sorted(lines) == list(range(10, 10 + NUM_LINES))
    assert len(plan) == 0
    (pin,) = unit.told
    assert isinstance(pin, PinnedPrefix)
    assert unit.asked_for == "a"
    assert (pin.model, len(pin.tokens), pin.cache_salt) == ("a", SHARED, "salt")
    for line in lines[:-1]:
        plan.started(line)
        plan.ended(line, 20)
    assert unit.told == [pin]
    plan.ended(lines[-1], None)
    assert unit.told == [pin, Unpin(pin.pin_id)]


def test_without_room_a_line_runs_alone_and_the_next_follows_it() -> None:
    unit = _Unit(1)
    plan = _plan(unit)
    started = []
    while len(plan):
        (line,) = plan.take()
        assert not plan.take()
        started.append(line.line)
        plan.started(line.line)
        plan.ended(line.line, 20)
    assert sorted(started) == list(range(10, 10 + NUM_LINES))


def test_nothing_starts_beside_others_that_hold_all_memory() -> None:
    unit = _Unit(100)
    unit.space = BatchSpace(100, 100)
    assert not _plan(unit).take()


def test_a_plan_that_is_given_up_frees_its_pins() -> None:
    unit = _Unit(10**9)
    plan = _plan(unit)
    plan.take()
    plan.close()
    pins = {each.pin_id for each in unit.told if isinstance(each, PinnedPrefix)}
    freed = {each.pin_id for each in unit.told if isinstance(each, Unpin)}
    assert pins == freed != set()


def test_plans_of_the_same_unit_divide_its_memory() -> None:
    unit, other = _Unit(0), _Unit(10**9)
    line_bytes = (SHARED + 16 + 10) * RESOURCES.kv_bytes
    # two plans' prefixes and half of all other tokens
    unit.space = BatchSpace(4 * line_bytes // SPEC.block_bytes, 0)
    alone = len(_plan(unit).take())
    plans = [_plan(unit, model="a"), _plan(unit, model="b"), _plan(other, model="c", unit_id="v")]
    (sharing,) = FedPlan.sharing_units(plans)
    assert sharing == plans[:2]
    FedPlan.share_memory(sharing)
    first, second, third = (len(plan.take()) for plan in plans)
    assert third == NUM_LINES
    assert unit.asked_for is None and other.asked_for == "c"
    assert 0 < first < alone and first == second


def test_plans_that_take_turns_begin_when_the_one_before_is_over() -> None:
    unit = _Unit(10**9)
    plans = [_plan(unit, model=model) for model in ("a", "b", "c")]
    FedPlan.take_turns(plans)
    for plan, later in zip(plans, [*plans[1:], None], strict=True):
        lines = plan.take()
        assert len(lines) == NUM_LINES
        for line in lines:
            assert later is None or (len(later) == NUM_LINES and not later.take())
            plan.started(line.line)
            plan.ended(line.line, 20)
