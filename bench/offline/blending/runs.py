"""Runs of a workload in an order, stored so that a long bench can be continued."""

import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from pathlib import Path

import numpy as np

from bench.offline.baselines.longest_prefix import longest_prefix_order
from bench.offline.blending.traces import Mix, trace
from bench.offline.blending.unit import KV_BYTES, RESOURCES, Lane, make_unit, permitted
from bench.offline.rows import Row
from bench.offline.rows import Rows as KeptRows
from muxcluster.offline.blend.lengths import known_lengths
from muxcluster.offline.choice import Unplanned, summary_of
from muxcluster.offline.feed.feeder import BatchFeeder
from muxcluster.offline.order.orders import OfflineJob
from muxcluster.offline.predictor import Prediction
from muxcluster.offline.prefix.prompts import take_prompts
from muxcluster.sim.batch.simulate import SimPredictor

UNTOLD = 256.0  # Output tokens that every request is believed to have before there are results
LONGEST_PREFIX = "longest-prefix"


@dataclass(frozen=True, slots=True)
class Case:
    """One run. No order is told output lengths: plans are made from a sample, others need none."""

    mix: Mix
    num_requests: int
    order: str  # of `offline.orders`, or LONGEST_PREFIX
    lane: Lane

    @property
    def name(self) -> str:
        """Of the row that is kept."""
        return f"{self.mix.name}, {self.num_requests} requests, {self.order}, {self.lane.value}"


class Rows:
    """Rows by case and seed, kept in a file; None keeps them in memory alone."""

    def __init__(self, path: Path | None) -> None:
        self._kept = KeptRows(path)

    def run(self, cases: Iterable[Case], seed: int) -> None:
        """Those that are not here yet."""
        for case in cases:
            name = _name(case, seed)
            if name not in self._kept:
                row = self._kept.run(name, partial(_run, case, seed))
                print({key: value for key, value in row.items() if key != "use"}, flush=True)

    def have(self, cases: Iterable[Case], seed: int) -> bool:
        """True where all of them have run."""
        return all(_name(case, seed) in self._kept for case in cases)

    def of(self, case: Case, seed: int) -> Row:
        """What came of a case. Raises KeyError where it has not run."""
        return self._kept[_name(case, seed)]


def _name(case: Case, seed: int) -> str:
    return f"{case.name}, seed {seed}"


@lru_cache(maxsize=1)
def _prepared(mix: Mix, num_requests: int, seed: int) -> tuple[Unplanned, OfflineJob]:
    job = trace(mix, num_requests, RESOURCES, KV_BYTES, seed)
    return job, job.with_tree()


def _run(case: Case, seed: int) -> Row:
    job, whole = _prepared(case.mix, case.num_requests, seed)
    summary = summary_of(whole)
    best = permitted(summary)
    start_s = time.process_time()
    found = _predicted(case, job, whole)
    return {
        "num_requests": summary.num_requests,
        "density": summary.density,
        "sharing": summary.sharing,
        "permitted": asdict(best),
        "ideal_s": summary.optimum_s,
        "makespan_s": found.makespan_s,
        "share_of_permitted": best.seconds / found.makespan_s,
        "share_of_ideal": summary.optimum_s / found.makespan_s,
        "sharing_kept": found.saving_ratio / summary.sharing,
        "recomputed_tokens": found.recomputed_tokens,
        "num_refused": found.num_refused,
        "cpu_s": round(time.process_time() - start_s, 1),
        "use": {
            "bin_s": found.use.bin_s,
            "compute": found.use.compute.round(4).tolist(),
            "memory": found.use.memory.round(4).tolist(),
            "held": found.use.held.round(4).tolist(),
        },
    }


def _predicted(case: Case, job: Unplanned, whole: OfflineJob) -> Prediction:
    order = case.order
    if order == LONGEST_PREFIX:
        job, order = in_longest_prefix_order(job, whole), "fcfs"
        whole = job.with_tree()
    predictor = SimPredictor(make_unit(case.lane), "m", RESOURCES)
    return predictor.predict(job.prompts, job.output_tokens, untold(whole, order))


def in_longest_prefix_order(job: Unplanned, whole: OfflineJob) -> Unplanned:
    """Return the job as if its requests had arrived longest prefix first; `whole` has its tree.

    It then runs in the order of arrival with the unit's own LRU cache and nothing pinned.
    """
    numbers = longest_prefix_order(whole.tree, int(job.size_bytes / job.model.kv_bytes))
    prompts = take_prompts(job.prompts, numbers)
    return replace(job, prompts=prompts, output_tokens=job.output_tokens[numbers])


def untold(whole: OfflineJob, order: str) -> BatchFeeder:
    """A feeder of the job that knows nothing of its lengths."""
    believed = np.full(len(whole.tree.order), UNTOLD)
    job = replace(whole, outputs=known_lengths(believed))
    return BatchFeeder(job, order, np.full(len(believed), np.nan))
