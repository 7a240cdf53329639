"""Padded batches: jobs of a model have as many rows as its batches are found to have memory for."""

import random
from typing import Any

import numpy as np
import pytest

from muxcluster.core.job import Job, Phase
from muxcluster.core.padded import PaddedBatch, PaddedLimit, RowBytes
from muxcluster.core.request import Request, ServiceClass, Slo
from muxcluster.scheduling.state.batch_scaling import BatchScaling
from tests.amounts import examples, slow
from tests.scheduling.fake_worker import FakeMemory
from tests.scheduling.rig import LANES, SOME_LANES, Rig, model_spec, request, unit_spec
from tests.scheduling.test_random_runs import run_to_the_end

LIMIT = PaddedLimit(RowBytes(fixed=30, per_token=10), limit_bytes=1500)
"""Three rows of 47 tokens, or six of 22."""
PACKINGS = ("priority", "fcfs", "hybrid", "additive", "round-robin")


def test_a_batch_that_takes_more_than_foretold_is_scaled_down_at_once_and_up_by_degrees() -> None:
    scaling = BatchScaling(RowBytes(0, 10), limit_bytes=400, max_rows=8)
    lengths = np.full(8, 9)
    assert scaling.num_fitting(lengths) == 4
    scaling.observe(PaddedBatch(num_rows=4, num_columns=10, num_bytes=800))
    assert scaling.num_fitting(lengths) == 2
    scaling.observe(PaddedBatch(2, 10, 200))
    assert scaling.num_fitting(lengths) == 2, "a single batch says little"
    for _ in range(100):
        scaling.observe(PaddedBatch(2, 10, 200))
    assert scaling.num_fitting(lengths) == 3, "the last row is missing by a hundredth"
    scaling.observe(PaddedBatch(0, 0, 0))
    assert scaling.num_fitting(np.full(8, 8)) == 4


def test_rows_beside_others_fit_with_the_longest_of_all() -> None:
    scaling = BatchScaling(RowBytes(0, 10), limit_bytes=400, max_rows=8)
    assert scaling.num_fitting(np.array([4, 4, 4]), num_rows=2, longest=9) == 2
    assert scaling.num_fitting(np.array([4, 19, 4]), num_rows=1, longest=9) == 1
    assert scaling.num_fitting(np.array([4]), num_rows=1, longest=39) == 0
    assert scaling.num_fitting(np.array([99])) == 1


class PaddedRig(Rig):
    """Model "a" pads its batches, which take `factor` times what is foretold of them."""

    def __init__(self, factor: float, seed: int = 0, num_blocks: int = 200, **policy: Any) -> None:
        padded = model_spec("a", padded=LIMIT, backend="dense", max_seqs=12)
        models = (padded, model_spec("b"))
        spec = unit_spec(models, num_blocks=num_blocks, num_host_blocks=100, **policy)
        super().__init__(spec, seed)
        self.memory = FakeMemory(spec, factor)
        self.largest: dict[bool, int] = {False: 0, True: 0}
        """Bytes of a batch of several rows, by whether one was measured before."""
        self._has_measured = False

    def launch(self) -> list[Job]:
        jobs = super().launch()
        for job in jobs:
            batch = self.memory.padded(job)
            if batch is not None and batch.num_rows > 1:
                most = max(self.largest[self._has_measured], batch.num_bytes)
                self.largest[self._has_measured] = most
        return jobs

    def finish(self, worker_id: int | None = None) -> Job:
        job = super().finish(worker_id)
        self._has_measured |= self.memory.padded(job) is not None
        return job

    def run_and_check(self, asked: list[Request]) -> None:
        """To the end: every answer is right, and nothing is left."""
        self.run()
        while self.running:
            self.finish()
        self.check_outputs(asked)
        self.check_empty()


def requests(seed: int) -> list[Request]:
    rng = random.Random(seed)
    return [
        request(
            f"{seed}-{i}",
            rng.choice("aaab"),
            num_prompt=rng.randint(1, 30),
            num_output=rng.randint(1, 30),
            service_class=rng.choice(tuple(ServiceClass)),
            slo=rng.choice((None, Slo(0.5, 0.2))),
        )
        for i in range(20)
    ]


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("lane", SOME_LANES)
@pytest.mark.parametrize("depth", [1, *slow(2)])
def test_jobs_keep_to_the_memory_of_their_batches(lane: str, packing: str, depth: int) -> None:
    """Whatever happens, and whatever a batch really takes."""
    factors = (1.6, 1.0, 2.5, 1.0) if depth == 1 else (2.5, 1.0, 1.6, 1.0)
    for seed, factor in enumerate(factors[: examples(1, 4)]):
        rig = PaddedRig(factor, seed, lane=lane, packing=packing, pipeline_depth=depth)
        asked = requests(seed)
        rig.add(*asked)
        rig.run_and_check(asked)
        assert rig.largest[True] <= LIMIT.limit_bytes
        assert rig.largest[True] > LIMIT.limit_bytes / 2, "no batch was large enough"
        assert rig.largest[False] <= factor * LIMIT.limit_bytes


@pytest.mark.parametrize("lane", SOME_LANES)
def test_rows_that_lent_come_back_where_the_batch_has_memory(lane: str) -> None:
    num_lent = 0
    for seed in range(examples(1, 8)):
        rig = PaddedRig(1.0, seed, 80, lane=lane, packing="hybrid")
        asked = requests(seed)
        for each in asked:
            rig.add(each)
            rig.step()
            rig.step()
        rig.run_and_check(asked)
        assert rig.largest[True] <= LIMIT.limit_bytes
        num_lent += sum(each.num_lent_columns for each in rig.scheduler.stats(0, "unit").models)
    assert num_lent > 0


@pytest.mark.parametrize("packing", PACKINGS)
def test_padded_models_survive_whatever_happens(packing: str) -> None:
    """Aborts, failures and restarts come in between."""
    for seed in range(examples(2, 10)):
        rng = random.Random(seed)
        rig = PaddedRig(rng.uniform(1, 2), seed, lane=rng.choice(LANES), packing=packing)
        run_to_the_end(rng, rig, requests(seed))
        rig.check_empty()


def test_the_most_senior_stay_in_the_batch() -> None:
    """Rows that do not fit wait until others have ended: nobody takes turns."""
    rig = PaddedRig(1.0, lane="mixed", token_budget=256)
    rig.add(*(request(f"{i}", num_prompt=20, num_output=20) for i in range(6)))
    rig.run()
    decodes = [rig.names_in(job) for job in rig.jobs if job.phase is not Phase.PREFILL]
    ends = sorted(rig.end_s, key=rig.end_s.__getitem__)
    assert ends == [str(i) for i in range(6)]
    changes = sum(before != after for before, after in zip(decodes, decodes[1:], strict=False))
    assert changes <= 8
