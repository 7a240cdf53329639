"""Runs a workload in an order and keeps what came of it: a long bench can be continued."""

import json
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from bench.harness import source
from bench.offline.blendserve_traces import Mix, trace
from bench.offline.blendserve_unit import KV_BYTES, RESOURCES, make_unit, permitted
from muxcluster.offline.blend.lengths import known_lengths
from muxcluster.offline.choice import Unplanned, nature_of
from muxcluster.offline.feeding import BatchFeeder
from muxcluster.offline.orders import OfflineJob
from muxcluster.sim.batch import SimPredictor

Row = dict[str, Any]
UNTOLD = 256.0
"""Output tokens that every request is believed to have before there are results."""


@dataclass(frozen=True, slots=True)
class Case:
    """One run. sampled: output lengths are known to nobody at first; else they are.

    overlap: prefill and decode side by side, else mixed jobs whose parts' times add up.
    """

    mix: Mix
    num_requests: int
    order: str
    sampled: bool = False
    overlap: bool = True

    @property
    def name(self) -> str:
        """Of the row that is kept."""
        lengths = "sampled" if self.sampled else "known"
        lane = "overlap" if self.overlap else "serial"
        return f"{self.mix.name}, {self.num_requests} requests, {self.order}, {lengths}, {lane}"


class Rows:
    """Rows by name of the case, one a line of a file; None keeps them in memory alone."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._rows: dict[str, Row] = {}
        if path is not None and path.exists():
            lines = path.read_text(encoding="utf-8").splitlines()
            self._rows = {row["case"]: row for row in map(json.loads, lines)}

    def run(self, cases: Iterable[Case], seed: int) -> None:
        """Those that are not here yet."""
        for case in cases:
            name = f"{case.name}, seed {seed}"
            if name in self._rows:
                continue
            row = {"case": name, **_run(case, seed)}
            self._rows[name] = row
            shown = {key: value for key, value in row.items() if key != "use"}
            print(shown, flush=True)
            if self._path is not None:
                with self._path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")

    def have(self, cases: Iterable[Case], seed: int) -> bool:
        """True where all of them have run."""
        return all(f"{case.name}, seed {seed}" in self._rows for case in cases)

    def of(self, case: Case, seed: int) -> Row:
        """What came of a case. Raises KeyError where it has not run."""
        return self._rows[f"{case.name}, seed {seed}"]


@lru_cache(maxsize=1)
def _prepared(mix: Mix, num_requests: int, seed: int) -> tuple[Unplanned, OfflineJob]:
    job = trace(mix, num_requests, RESOURCES, KV_BYTES, seed)
    return job, job.with_tree()


def _run(case: Case, seed: int) -> Row:
    job, whole = _prepared(case.mix, case.num_requests, seed)
    nature = nature_of(whole)
    best = permitted(nature)
    unit = make_unit(best.split if case.overlap else None)
    predictor = SimPredictor(unit, "m", RESOURCES)
    start_s = time.process_time()
    feeder = untold(whole, case.order) if case.sampled else BatchFeeder(whole, case.order)
    found = predictor.predict(job.prompts, job.output_tokens, feeder)
    bare_s = best.seconds if case.overlap else best.serial_s
    return {
        "num_requests": nature.num_requests,
        "density": nature.density,
        "sharing": nature.sharing,
        "split": best.split if case.overlap else None,
        "permitted": asdict(best),
        "ideal_s": nature.optimum_s,
        "makespan_s": found.makespan_s,
        "share_of_permitted": bare_s / found.makespan_s,
        "share_of_ideal": nature.optimum_s / found.makespan_s,
        "sharing_kept": found.saving_ratio / nature.sharing,
        "recomputed_tokens": found.recomputed_tokens,
        "num_refused": found.num_refused,
        "cpu_s": round(time.process_time() - start_s, 1),
        "commit": source()["commit"],
        "use": {
            "bin_s": found.use.bin_s,
            "compute": found.use.compute.round(4).tolist(),
            "memory": found.use.memory.round(4).tolist(),
            "held": found.use.held.round(4).tolist(),
        },
    }


def untold(whole: OfflineJob, order: str) -> BatchFeeder:
    """A feeder of the job that knows nothing of its lengths."""
    believed = np.full(len(whole.tree.order), UNTOLD)
    job = replace(whole, outputs=known_lengths(believed))
    return BatchFeeder(job, order, np.full(len(believed), np.nan))
