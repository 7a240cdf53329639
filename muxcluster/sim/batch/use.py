"""Compute and memory bandwidth that jobs use over time, as BlendServe counts them."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from muxcluster.core.job import Phase
from muxcluster.placement.cost.resources import ResourceModel
from muxcluster.sim.core.concurrency import Running
from muxcluster.workload.metrics.series import step_means


class ResourceMeter:
    """The resource integrals of jobs, each spread evenly over its run."""

    def __init__(self, models: Mapping[str, ResourceModel]) -> None:
        """models: by name, to count jobs."""
        self._models = models
        self._spans: list[tuple[float, float, float, float]] = []

    def ran(self, entry: Running, now: float) -> None:
        """Count a job that ended."""
        compute_s, memory_s = self._seconds(entry)
        self._spans.append((entry.start_s, now, compute_s, memory_s))

    def means(
        self, edges_s: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return compute and memory seconds used per second between consecutive edges."""
        starts, ends, compute_s, memory_s = np.array(self._spans, dtype=np.float64).reshape(-1, 4).T
        return (
            _means(starts, ends, compute_s, edges_s),
            _means(starts, ends, memory_s, edges_s),
        )

    def _seconds(self, entry: Running) -> tuple[float, float]:
        """Return a job's resource seconds.

        Attention of decoding rows counts as reading keys and values, of prompt chunks as computing.
        """
        rows, model = entry.job.rows, self._models[entry.job.model]
        starts, counts = rows.starts.astype(np.float64), rows.counts.astype(np.float64)
        is_decode = (
            np.ones(len(rows), dtype=np.bool_)
            if entry.job.phase is Phase.DECODE
            else (counts == 1) & rows.samples
        )
        first, steps = starts[is_decode], float(entry.num_steps)
        ones = np.full(len(first), steps)
        chunks = starts[~is_decode]
        compute = model.prefill_s(chunks, chunks + counts[~is_decode]).sum()
        compute += model.decode_s(ones).sum()
        return float(compute), float(model.read_s(first, ones, ones * ones).sum())


def _means(
    starts: NDArray[np.float64],
    ends: NDArray[np.float64],
    amounts: NDArray[np.float64],
    edges: Sequence[float] | NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return mean rates between `edges` of amounts that are spread evenly from start to end."""
    rates = amounts / np.maximum(ends - starts, 1e-12)
    times = np.concatenate((starts, ends))
    changes = np.concatenate((rates, -rates))
    order = np.argsort(times, kind="stable")
    return step_means(times[order], np.cumsum(changes[order]), edges)
