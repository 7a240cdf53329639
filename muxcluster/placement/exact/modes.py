"""Modes: cost of a model's replica on a mesh, per request served, for each way of running it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from muxcluster.placement.estimator import BATCHES, Estimator, ModelCost
from muxcluster.placement.estimator.shares import splits_of
from muxcluster.placement.execution import executions
from muxcluster.placement.hardware import Gpu
from muxcluster.placement.memory import DoesNotFit, block_bytes, usable_bytes
from muxcluster.placement.problem import Demand

_SAMPLING = 0.01
# Columns of `Modes.table`: KV bytes of a replica; seconds per request of its decode lane, of the
# mesh's prefill lane, of all SMs, of the whole memory bandwidth.
KV, LANE, PREFILL, SMS, BANDWIDTH = range(5)


@dataclass(frozen=True, slots=True)
class Modes:
    """A model on one kind of mesh."""

    # static_bytes, activation_bytes, floor_bytes (one longest sequence): least over the block sizes
    # that the model may have; static_bytes: 0 for a model that may be parked, whose memory others
    # may have at the time, as its KV in the table. table: [modes, 5]
    table: NDArray[np.float64]
    static_bytes: int
    activation_bytes: int
    floor_bytes: int


@dataclass(frozen=True, slots=True)
class Detail:
    """Resolution of the modes; a coarse one is faster, and its bound is never lower."""

    # Batches per run; a run counts as one batch with the KV of its smallest and the speed of its
    # fastest
    stride: int = 1
    # One mode per batch, with the best SM shares for each resource separately
    melt_shares: bool = False
    # Only the ends of a run are evaluated, and counted as 1 % faster: the minimum between them is
    # lower by less than that (at most 0.02 % for the published A100 profile)
    sampled: bool = False


def modes_of(estimator: Estimator, index: int, gpu: Gpu, tp: int, detail: Detail) -> Modes | None:
    """Return a mode for every way in which an estimated unit can run the model, or better ones;
    None if no unit on such a mesh holds it."""
    demand = estimator.problem.demands[index]
    usable = usable_bytes(gpu, tp)
    costs = [
        (cost, size)
        for cost, size in _costs(estimator, index, gpu, tp)
        if _needs(cost, size) <= usable
    ]
    if not costs:
        return None
    static = min(cost.static_bytes for cost, _ in costs)
    sequence = min(cost.sequence_blocks * size for cost, size in costs)
    cost = costs[0][0]
    runs = _runs(demand, sequence, usable - static - cost.activation_bytes, detail)
    ways = _ways(estimator, gpu, tp)
    kv = 0 if demand.may_park else sequence  # as the weights: others may have it at the time
    tables = [_run_table(cost, run, kv, ways) for run in runs]
    if detail.sampled:
        for table in tables:
            table[:, 1:] *= 1 - _SAMPLING
    if detail.melt_shares:
        tables = [table.min(axis=0, keepdims=True) for table in tables]
    return Modes(
        table=_undominated(np.concatenate(tables)),
        static_bytes=0 if demand.may_park else static,
        activation_bytes=cost.activation_bytes,
        floor_bytes=min(cost.floor_blocks * size for cost, size in costs),
    )


def _costs(estimator: Estimator, index: int, gpu: Gpu, tp: int) -> list[tuple[ModelCost, int]]:
    """Return the model's cost at each block size that it may have in a unit, and that size."""
    problem = estimator.problem
    least = block_bytes([problem.demands[index]], problem.limits)
    sizes = {block_bytes([demand], problem.limits) for demand in problem.demands}
    found = []
    for size in sorted(size for size in sizes if size >= least):
        try:
            found.append((estimator.model(index, gpu, tp, size), size))
        except DoesNotFit:
            continue
    return found


def _needs(cost: ModelCost, size: int) -> int:
    return cost.static_bytes + cost.activation_bytes + cost.floor_blocks * size


def _runs(demand: Demand, sequence: int, pool: int, detail: Detail) -> list[tuple[int, ...]]:
    """Return the batches that fit, in runs; a sampled run is its first and the next run's first."""
    most = min(demand.max_seqs, pool // sequence)
    fit = [batch for batch in BATCHES if batch == 1 or batch <= most]
    starts = range(0, len(fit), detail.stride)
    if detail.sampled:
        ends = (fit[min(first + detail.stride, len(fit) - 1)] for first in starts)
        return [(fit[first], end) for first, end in zip(starts, ends, strict=True)]
    return [tuple(fit[first : first + detail.stride]) for first in starts]


@dataclass(frozen=True, slots=True)
class _Ways:
    """Ways of running jobs that some unit on a mesh may have."""

    in_turns: bool
    in_mixed_jobs: bool
    shares: tuple[tuple[float, float], ...]  # (prefill, decode) SM shares side by side


def _ways(estimator: Estimator, gpu: Gpu, tp: int) -> _Ways:
    found = [
        each
        for num_models in (1, 2, 3)
        for each in executions(gpu, tp, num_models, estimator.problem.policy)
    ]
    pairs = {(split, share) for each in found for split, rest in splits_of(each) for share in rest}
    return _Ways(
        in_turns=not all(each.runs_mixed for each in found),
        in_mixed_jobs=any(each.runs_mixed for each in found),
        shares=tuple(sorted(pairs)),
    )


def _run_table(
    cost: ModelCost, run: Sequence[int], sequence: int, ways: _Ways
) -> NDArray[np.float64]:
    """Return the modes of a run of batches [modes, 5]: one job at a time on the whole GPU, and side
    by side.

    A model with less than one mean sequence of KV still counts as a batch of 1.
    """
    kv = 0 if run[0] == 1 else run[0] * sequence
    shares = ways.shares
    best = {share: _best_decode(cost, run, share) for share in {1.0, *(each for _, each in shares)}}
    rows = [_in_turns(cost, best[1.0])] if ways.in_turns else []
    rows += [_in_mixed_jobs(cost, run)] if ways.in_mixed_jobs else []
    rows += [_side_by_side(cost, split, share, best[share]) for split, share in shares]
    return np.array([(kv, *row) for row in rows])


def _best_decode(cost: ModelCost, run: Sequence[int], share: float) -> tuple[float, float, float]:
    """Return (seconds, seconds of the whole bandwidth, draw) of a request's decode, each the least
    over a run of batches."""
    found = [cost.decode(batch, share) for batch in run]
    return (
        min(seconds for seconds, _ in found),
        min(seconds * draw for seconds, draw in found),
        min(draw for _, draw in found),
    )


def _in_turns(cost: ModelCost, decode: tuple[float, float, float]) -> tuple[float, ...]:
    """Return the mode in which each job has the whole GPU, busy with this request for so long."""
    prefill_s, prefill_draw = cost.prefill(1.0)
    decode_s, drawn, _ = decode
    busy = prefill_s + decode_s
    return busy, 0.0, busy, prefill_s * prefill_draw + drawn


def _in_mixed_jobs(cost: ModelCost, run: Sequence[int]) -> tuple[float, ...]:
    """Return the mode in which prompts and decodes of the model are one job on the whole GPU."""
    found = [cost.mixed(batch) for batch in run]
    busy = min(seconds for seconds, _ in found)
    return busy, 0.0, busy, min(drawn for _, drawn in found)


def _side_by_side(
    cost: ModelCost, split: float, share: float, decode: tuple[float, float, float]
) -> tuple[float, ...]:
    """Return the mode of `estimator.shares`, slowed down by the model's own jobs only."""
    prefill_s, prefill_draw = cost.prefill(split)
    decode_s, drawn, draw = decode
    slower = cost.slowdown((prefill_draw, draw))
    sms = (split * prefill_s + share * decode_s) * slower
    return decode_s * slower, prefill_s * slower, sms, prefill_s * prefill_draw + drawn


def _undominated(table: NDArray[np.float64]) -> NDArray[np.float64]:
    """Drop rows that another row undercuts in every column, or repeats."""
    table = np.unique(table, axis=0)
    kept: list[int] = []
    for number, row in enumerate(table):
        # sorted by the first column, so that only earlier rows can be as good in all
        earlier = table[kept]
        if not np.any(np.all(earlier <= row, axis=1)):
            kept.append(number)
    return table[kept]
