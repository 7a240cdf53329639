"""Use of SMs and KV pools."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from muxcluster.sim.core.unit import SimUnit
from muxcluster.sim.core.usage import Usage
from muxcluster.sim.report.judge import fairness_report
from muxcluster.sim.report.report import UseReport

NUM_BINS = 60  # spans of a window


def use_report(
    units: Sequence[SimUnit],
    usage: Mapping[str, Usage],
    duration_s: float,
    offered: Mapping[str, float],
) -> UseReport:
    """Return use over the first `duration_s` seconds.

    usage: of every unit, in `NUM_BINS` spans. Units are weighted by their GPUs and by the bytes of
    their pools. offered: requests/s by model.
    """
    gpus = {unit.spec.unit_id: float(unit.tp) for unit in units}
    pools = {u.spec.unit_id: float(u.spec.num_blocks * u.spec.mesh_block_bytes) for u in units}
    sm = sum(gpus[name] * _full(each.sm_share) for name, each in usage.items())
    idle = sum(gpus[name] * _full(each.idle_share) for name, each in usage.items())
    held: dict[str, NDArray[np.float64]] = {name: np.zeros(NUM_BINS) for name in offered}
    for name, each in usage.items():
        for model, share in each.kv_share.items():
            held[model] += pools[name] * _full(share)
    parts = {model: found / sum(pools.values()) for model, found in held.items()}
    means = {model: float(part.mean()) for model, part in parts.items()}
    return UseReport(
        sm=float(np.mean(sm)) / sum(gpus.values()),
        sm_idle_beside_waiting=float(np.mean(idle)) / sum(gpus.values()),
        kv=sum(means.values()),
        times_s=tuple((duration_s / NUM_BINS * np.arange(1, NUM_BINS + 1)).tolist()),
        kv_over_time={model: tuple(part.tolist()) for model, part in parts.items()},
        kv_fairness=fairness_report(means, offered),
    )


def _full(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return [NUM_BINS] values, cut at the end of the window, 0 after the last job."""
    found = np.zeros(NUM_BINS)
    kept = values[:NUM_BINS]
    found[: len(kept)] = kept
    return found
