"""A bound that no plan exceeds: linear relaxation over all meshes of a kind and size together.

Each replica of a model runs in one of its modes (batch, SM shares); its served rate is a variable,
and memory, SM time, memory bandwidth and prefill lane are summed over equal meshes. Every layout,
with any number of replicas and any split of the rates, is a solution of that program: a unit's
batches, shares and served rates satisfy each row with the unit's own numbers.

The relaxation drops three rules, which leaves a gap on overloaded clusters: models of one unit are
served the same fraction of their rates, quotas follow the rates, and a model is on a mesh wholly or
not at all. Whole numbers of meshes were tried and tighten it by less than 0.1 %.
"""

import time
from dataclasses import dataclass, replace

from muxcluster.placement.exact.modes import (
    BANDWIDTH,
    KV,
    LANE,
    PREFILL,
    SMS,
    Detail,
    Modes,
    modes_of,
)
from muxcluster.placement.exact.program import Program
from muxcluster.placement.hardware import GIB, Gpu
from muxcluster.placement.memory import usable_bytes
from muxcluster.placement.search.gpus import Kind
from muxcluster.placement.search.layout import UnitBuilder

INF = float("inf")
_ROUNDING = 1e-6  # relative error within the solver's tolerances
# Tried one after another while there is time.
_DETAILS = (Detail(stride=8, melt_shares=True), Detail(stride=4), Detail())
# Number of models times kinds of mesh above which modes are sampled, because all take too long.
_MANY_PAIRS = 3000
# Seconds to find the modes of a model on a kind of mesh; skipped if there is less time.
_PAIR_S = 0.004
_FINER = 8.0  # most times longer that the next detail takes


def upper_bound(builder: UnitBuilder, time_limit_s: float, reached: float = 0.0) -> float | None:
    """Return a value that no layout exceeds (sum of PlacedUnit.estimate.value).

    It is at most the value of serving everything; None for "fewest-gpus"; -inf if not even the
    relaxation has a place for every model. time_limit_s: approximate. reached: value of a known
    layout; if that is the maximum, nothing is computed.
    """
    problem = builder.estimator.problem
    if problem.objective == "fewest-gpus":
        return None
    end = time.perf_counter() + time_limit_s
    bound = sum(each.rate * each.worth(problem.objective) for each in problem.demands)
    pairs = len(problem.demands) * len(builder.meshes)
    for detail in _DETAILS:
        begin = time.perf_counter()
        if _proven(reached, bound) or pairs * _PAIR_S > end - begin:
            return bound
        program = _PooledProgram(builder, replace(detail, sampled=pairs > _MANY_PAIRS)).program
        bound = min(bound, _padded(program.optimum(end - time.perf_counter())))
        took = time.perf_counter() - begin
        if took * _FINER > end - time.perf_counter():
            break
    return bound


def _proven(reached: float, bound: float) -> bool:
    return reached >= bound * (1 - _ROUNDING)


def _padded(bound: float) -> float:
    return bound * (1 + _ROUNDING)


@dataclass(frozen=True, slots=True)
class _MeshRows:
    """Rows that equal meshes share."""

    memory: int
    kv: int
    prefill: int
    sms: int
    bandwidth: int


class _PooledProgram:
    """The program of `upper_bound`; bytes in GiB."""

    def __init__(self, builder: UnitBuilder, detail: Detail) -> None:
        problem = builder.estimator.problem
        self.program = Program()
        self._estimator = builder.estimator
        self._demands = problem.demands
        self._gains = [demand.worth(problem.objective) for demand in problem.demands]
        self._rates = [self.program.row(-INF, demand.rate) for demand in self._demands]
        self._covers = [self.program.row(1.0, INF) for _ in self._demands]
        self._known: dict[tuple[object, ...], Modes | None] = {}
        self._detail = detail
        for kind in builder.kinds.values():
            slots = {size: self.program.row(-INF, most) for size, most in kind.slots.items()}
            for tp in kind.slots:
                self._add_meshes(kind, tp, slots)

    def _add_meshes(self, kind: Kind, tp: int, slots: dict[int, int]) -> None:
        found = [self._modes(index, kind.gpu, tp) for index in range(len(self._demands))]
        held = [(index, modes) for index, modes in enumerate(found) if modes is not None]
        if not held:
            return
        rows = _MeshRows(*(self.program.row(-INF, 0.0) for _ in range(5)))
        least = min(modes.activation_bytes for _, modes in held)
        usable = usable_bytes(kind.gpu, tp) - least
        most = self._estimator.problem.limits.kv_bytes
        entries = [(row, float(tp // size)) for size, row in slots.items() if size <= tp]
        entries += [(rows.memory, -usable / GIB)]
        entries += [(rows.kv, -(usable if most is None else min(most, usable)) / GIB)]
        entries += [(row, -1.0) for row in (rows.prefill, rows.sms, rows.bandwidth)]
        one_each = [self.program.row(-INF, 0.0) for _ in held]
        entries += [(row, -1.0) for row in one_each]
        self.program.column(0.0, entries, upper=kind.slots[tp])
        for (index, modes), once in zip(held, one_each, strict=True):
            self._add_model(index, modes, rows, once)

    def _add_model(self, index: int, modes: Modes, rows: _MeshRows, once: int) -> None:
        """Add a replica: it is on the meshes for as long as its lane is busy, or idle there: the
        model is loaded, but this part of it serves nothing."""
        static = modes.static_bytes / GIB
        idle = [(self._covers[index], 1.0), (rows.memory, static), (once, 1.0)]
        self.program.column(0.0, idle)
        for mode in modes.table:
            lane, kv = mode[LANE], mode[KV] / GIB
            entries = [(row, factor * lane) for row, factor in idle]
            entries[1] = (rows.memory, (static + kv) * lane)
            entries += [
                (self._rates[index], 1.0),
                (rows.kv, kv * lane),
                (rows.prefill, mode[PREFILL]),
                (rows.sms, mode[SMS]),
                (rows.bandwidth, mode[BANDWIDTH]),
            ]
            self.program.column(self._gains[index], [each for each in entries if each[1] != 0.0])

    def _modes(self, index: int, gpu: Gpu, tp: int) -> Modes | None:
        """Return the modes, computed once for models that differ in name, rate and worth only."""
        demand = self._demands[index]
        key = (
            (demand.shape, demand.itemsize, demand.prompt_tokens, demand.output_tokens),
            (demand.max_model_len, demand.max_seqs, demand.batch_seqs, demand.may_park),
            (demand.constrained_share, gpu, tp),
        )
        if key not in self._known:
            self._known[key] = modes_of(self._estimator, index, gpu, tp, self._detail)
        return self._known[key]
