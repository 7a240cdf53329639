"""A bound that no plan exceeds: all meshes of a kind and size melted into one (linear relaxation).

Each replica of a model runs in one of its modes (batch, SM shares); what is served of it is a
variable, and the meshes' memory, SM time, memory bandwidth and prefill lane are summed over equal
meshes. Every layout, with any number of replicas and any split of the rates, is a solution of that
program: a unit's batches, shares and served rates satisfy each row with the unit's own numbers.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from placement.exact.modes import BANDWIDTH, KV, LANE, PREFILL, SMS, Modes, modes_of, usable_bytes
from placement.exact.program import Program
from placement.hardware import GIB, Gpu
from placement.problem import Demand, Objective
from placement.search.gpus import Kind
from placement.search.layout import Workshop

_ROUNDING = 1e-6
"""Relative; what the solver's tolerances may hide."""
_FINE_MODES = 40_000
"""Of all models on all meshes, batches not taken in runs; more are slow to solve."""
_BATCHES_PER_MESH = 200
_STRIDE = 4


def upper_bound(workshop: Workshop, time_limit_s: float) -> float | None:
    """No layout of the workshop's problem has a greater value (sum of Placed.estimate.value).

    At most the value of serving everything; None for "fewest-gpus". time_limit_s: for the solver,
    whose best bound so far counts when it ends; -inf where not even the relaxation has a place for
    every model.
    """
    problem = workshop.estimator.problem
    if problem.objective == "fewest-gpus":
        return None
    end = time.perf_counter() + time_limit_s
    total = sum(each.rate * worth(each, problem.objective) for each in problem.demands)
    program = _Melted(workshop, lambda demand: worth(demand, problem.objective)).program
    bound = program.solve(end - time.perf_counter(), whole=False).bound
    if bound >= total * (1 - _ROUNDING):
        return total
    left = end - time.perf_counter()
    if left > 0.5:
        bound = min(bound, program.solve(left, whole=True, gap=1e-4).bound)
    return min(total, bound * (1 + _ROUNDING))


def worth(demand: Demand, objective: Objective) -> float:
    """Of one request/s served, at most."""
    return demand.weight if objective == "weighted" else 1.0


@dataclass(frozen=True, slots=True)
class _MeshRows:
    """Rows that equal meshes share."""

    memory: int
    kv: int
    prefill: int
    sms: int
    bandwidth: int


class _Melted:
    """The program of `upper_bound`; bytes in GiB."""

    def __init__(self, workshop: Workshop, gain: Callable[[Demand], float]) -> None:
        self.program = Program()
        self._estimator = workshop.estimator
        self._demands = workshop.estimator.problem.demands
        self._gains = [gain(demand) for demand in self._demands]
        self._rates = [self.program.row(-INF, demand.rate) for demand in self._demands]
        self._covers = [self.program.row(1.0, INF) for _ in self._demands]
        self._known: dict[tuple[object, ...], Modes | None] = {}
        self._stride = _stride(workshop)
        for kind in workshop.kinds.values():
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
        self.program.column(0.0, entries, upper=kind.slots[tp], whole=True)
        for (index, modes), once in zip(held, one_each, strict=True):
            self._add_model(index, modes, rows, once)

    def _add_model(self, index: int, modes: Modes, rows: _MeshRows, once: int) -> None:
        """A replica is on the meshes for as much as its lane is busy, or idle there: the model is
        there, but this part of it serves nothing."""
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
        """Computed once for models that differ in name, rate and worth only."""
        demand = self._demands[index]
        key = (
            (demand.shape, demand.itemsize, demand.prompt_tokens, demand.output_tokens),
            (demand.max_model_len, demand.max_seqs, gpu.name, tp),
        )
        if key not in self._known:
            self._known[key] = modes_of(self._estimator, index, gpu, tp, self._stride)
        return self._known[key]


INF = float("inf")


def _stride(workshop: Workshop) -> int:
    """1 where all modes of all models are few enough to solve at once."""
    sizes = len(workshop.meshes()) * len(workshop.estimator.problem.demands)
    return 1 if sizes * _BATCHES_PER_MESH <= _FINE_MODES else _STRIDE
