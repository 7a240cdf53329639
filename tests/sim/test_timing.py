"""Jobs with copies take as long as the longer of forward and copies, by hand-computed bytes."""

from dataclasses import replace

import numpy as np
import pytest

from muxcluster.core.job import Job, Phase, Rows, SlotCopies, TableDelta
from muxcluster.placement.hardware import GPUS, cpu
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
