"""What a job takes: its parts, the copies beside it and the unit's turn after it, by hand."""

from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest

from muxcluster.core.job import Admission, Job, Phase, Rows, SlotCopies, TableDelta
from muxcluster.core.sampling import SamplingParams
from muxcluster.placement.cost import Roofline
from muxcluster.placement.hardware import GPUS, cpu
from muxcluster.placement.shapes.shape import ModelShape
from muxcluster.sim.core.timing import CostTiming, Work
from tests.sim.cases import SHAPE, sim_unit

LINK = 20e9
SLOT_BYTES = 2 * 128 * 2
"""K and V of one head in 16 bits: Llama-7B's head has 128 elements."""


def runs(*counts: int) -> np.ndarray:
    """Copies of so many slots each, from anywhere to anywhere."""
    return np.array([[100 * i, 7 * i, count] for i, count in enumerate(counts)], dtype=np.int64)


def copies(model: str, saves: tuple[int, ...] = (), restores: tuple[int, ...] = ()) -> SlotCopies:
    none = np.empty((0, 3), dtype=np.int64)
    return SlotCopies(
        model, runs(*saves) if saves else none, none, runs(*restores) if restores else none
    )


def job_of(*copied: SlotCopies, phase: Phase = Phase.DECODE, **more) -> Job:
    """Four sequences of 401 tokens that decode."""
    ones = np.ones(4, dtype=np.int32)
    rows = Rows(np.arange(4, dtype=np.int32), 400 * ones, ones, ones == 1)
    empty = np.empty(0, dtype=np.int32)
    tables = TableDelta(empty, empty, empty.reshape(0, SHAPE.num_layers * SHAPE.num_kv_heads))
    return Job(0, "a", phase, 0, 1.0, rows, tables, copies=copied, **more)


def work_of(job: Job, tp: int = 1) -> Work:
    unit = sim_unit()
    spec = replace(unit.spec, tp=tp, host_link=LINK)
    return CostTiming(replace(unit, spec=spec)).work(job, 0.0)


@pytest.mark.parametrize("phase", [Phase.DECODE, Phase.MIXED, Phase.PREFILL])
def test_short_copies_hide_behind_the_forward(phase: Phase) -> None:
    assert work_of(job_of(copies("b", (16, 3)), phase=phase)) == work_of(job_of(phase=phase))


def test_long_copies_are_what_the_job_takes() -> None:
    """Saves of one model and restores of another go over one link, one after the other."""
    plain = work_of(job_of())
    num_slots = 1_000_000 + 250_000 + 750_000
    job = job_of(copies("b", (1_000_000, 250_000)), copies("a", restores=(750_000,)))
    work = work_of(job)
    assert work.seconds == pytest.approx(num_slots * SLOT_BYTES / LINK)
    assert work.seconds > plain.seconds
    assert work.seconds * work.draw == pytest.approx(plain.seconds * plain.draw)


def test_each_gpu_copies_its_own_heads() -> None:
    """A job of several ranks names the slots of one of them, which has a link of its own."""
    job = job_of(copies("b", (8_000_000,)))
    assert work_of(job, tp=4).seconds == pytest.approx(work_of(job).seconds)


def test_what_stays_in_the_pool_takes_no_link() -> None:
    none = np.empty((0, 3), dtype=np.int64)
    moved = SlotCopies("b", none, runs(90_000_000), none)
    assert work_of(job_of(moved)) == work_of(job_of())


def test_several_steps_copy_once() -> None:
    copied = copies("b", (8_000_000,))
    once, thrice = (work_of(job_of(copied, max_steps=steps)) for steps in (1, 4))
    assert 4 * thrice.seconds == pytest.approx(once.seconds)


def test_links_by_generation() -> None:
    rates = {name: GPUS[name].host_link / 1e9 for name in ("T4", "A100-40GB", "L4", "H200")}
    assert rates == {"T4": 12.5, "A100-40GB": 25.0, "L4": 25.0, "H200": 50.0}
    assert cpu(4, 2**34).host_link == cpu(4, 2**34).link


class TurningCost(Roofline):
    """An A100 whose unit needs 1 ms a job, 10 us a row and 0.1 ms a new one; mixed jobs take the
    sum of their parts, and both parts are noted."""

    parts: ClassVar[list[tuple[float, float]]] = []

    def turn_s(self, rows: float, new: float) -> float:
        return 0.001 + 1e-5 * rows + 1e-4 * new

    def mixed_s(
        self, model: ModelShape, tp: int, share: float, prefill_s: float, decode_s: float
    ) -> float:
        self.parts.append((prefill_s, decode_s))
        return prefill_s + decode_s


def turning(**more) -> CostTiming:
    unit = sim_unit()
    cost = TurningCost(GPUS["A100-80GB"])
    models = {name: replace(model, cost=cost) for name, model in unit.models.items()}
    return CostTiming(replace(unit, models=models, **more))


@pytest.mark.parametrize("phase", [Phase.DECODE, Phase.MIXED, Phase.PREFILL])
def test_a_turn_is_added_once_to_each_job(phase: Phase) -> None:
    plain, work = work_of(job_of(phase=phase)), turning().work(job_of(phase=phase), 0.0)
    assert work.seconds == pytest.approx(plain.seconds + 0.001 + 4e-5)
    assert work.seconds * work.draw == pytest.approx(plain.seconds * plain.draw)


def test_new_requests_make_a_turn_longer() -> None:
    job = job_of(phase=Phase.PREFILL)
    prompt = np.zeros(3, dtype=np.int32)
    admissions = tuple(Admission(slot, str(slot), prompt, 3, SamplingParams()) for slot in (0, 2))
    works = [turning().work(replace(job, admissions=each), 0.0) for each in ((), admissions)]
    assert works[1].seconds - works[0].seconds == pytest.approx(2e-4)


def test_a_turn_follows_several_steps_and_every_repetition() -> None:
    job = job_of(max_steps=4)
    plain, work = work_of(job), turning().work(job, 0.0)
    assert 4 * work.seconds == pytest.approx(4 * plain.seconds + 0.001 + 4e-5)
    timing = turning()
    job = job_of()
    again = CostTiming(sim_unit()).repeated(job)
    for count in (0, 1, 50):
        assert timing.repeated(job)(count).seconds == pytest.approx(again(count).seconds + 0.00104)
    assert timing.repeated(job)(0) == timing.work(job, 0.0)


def test_a_mixed_job_is_made_of_its_prefill_and_its_decode() -> None:
    job = job_of(phase=Phase.MIXED)
    counts = np.array([1, 1, 1, 64], dtype=np.int32)
    starts = np.array([400, 400, 400, 0], dtype=np.int32)
    job = replace(job, rows=replace(job.rows, counts=counts, starts=starts))
    TurningCost.parts.clear()
    work = turning().work(job, 0.0)
    ((prefill_s, decode_s),) = TurningCost.parts
    cost = Roofline(GPUS["A100-80GB"])
    assert prefill_s == pytest.approx(cost.prefill_s(SHAPE, 1, 1.0, 1, 64))
    assert decode_s == pytest.approx(cost.decode_s(SHAPE, 1, 1.0, 3, 400))
    assert work.seconds == pytest.approx(prefill_s + decode_s + 0.00104)


def constrained(share: float) -> CostTiming:
    unit = sim_unit()
    models = {name: replace(each, constrained_share=share) for name, each in unit.models.items()}
    return CostTiming(replace(unit, models=models))


def test_masks_hide_behind_the_forward_or_are_what_a_step_takes() -> None:
    job = job_of()
    plain = work_of(job)
    assert constrained(0.01).work(job, 0.0) == plain
    rows = np.arange(400, dtype=np.int32)
    ones = np.ones(400, dtype=np.int32)
    wide = replace(job, rows=Rows(rows, 10 * ones, ones, ones == 1))
    free, work = constrained(0.0).work(wide, 0.0), constrained(1.0).work(wide, 0.0)
    assert work.seconds == pytest.approx(400 * 1.9e-4) and work.seconds > free.seconds
    assert work.seconds * work.draw == pytest.approx(free.seconds * free.draw)
    assert constrained(1.0).repeated(wide)(0) == work
    assert constrained(0.5).work(wide, 0.0) == free
