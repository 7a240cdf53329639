"""Predictions of the simulator for a system, from the profile measured in the same call."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.gpu.multiplexing.play import window_of
from bench.gpu.multiplexing.work import Work
from muxcluster.core.unitspec import UnitSpec
from muxcluster.placement.cost import Cost
from muxcluster.placement.shapes.shape import ModelShape
from muxcluster.sim.core.simulate import SimResult, simulate
from muxcluster.sim.core.timeline import JobSpan
from muxcluster.sim.core.unit import SimModel, SimUnit
from muxcluster.workload.metrics.window import figures

_ROUNDS = 3  # Of a static split: how slow a unit is follows from how busy the others are, and back


@dataclass(frozen=True)
class SlowedCost:
    """`cost` beside others that never rest: everything takes `factor` times as long."""

    cost: Cost
    factor: float

    def prefill_s(
        self, model: ModelShape, tp: int, share: float, batch: float, prompt_tokens: float
    ) -> float:
        return self.factor * self.cost.prefill_s(model, tp, share, batch, prompt_tokens)

    def decode_s(
        self, model: ModelShape, tp: int, share: float, batch: float, context: float
    ) -> float:
        return self.factor * self.cost.decode_s(model, tp, share, batch, context)

    def mixed_s(
        self, model: ModelShape, tp: int, share: float, prefill_s: float, decode_s: float
    ) -> float:
        return self.cost.mixed_s(model, tp, share, prefill_s, decode_s)

    def turn_s(self, rows: float, new: float) -> float:
        return self.cost.turn_s(rows, new)

    def prefill_draw(
        self, model: ModelShape, tp: int, share: float, batch: float, prompt_tokens: float
    ) -> float:
        return self.cost.prefill_draw(model, tp, share, batch, prompt_tokens) / self.factor

    def decode_draw(
        self, model: ModelShape, tp: int, share: float, batch: float, context: float
    ) -> float:
        return self.cost.decode_draw(model, tp, share, batch, context) / self.factor

    def slowdown(self, draws: Sequence[float]) -> float:
        return self.cost.slowdown(draws)


def predicted_per_s(units: Sequence[UnitSpec], work: Work, cost: Cost, until_s: float) -> float:
    """Requests/s in the window. until_s: where the recording stops, as that of the real run.

    Several units are a static split of one GPU: each is simulated by itself, slowed by what the
    others draw of the memory bandwidth on average.
    """
    shapes = {tenant.name: tenant.shape for tenant in work.tenants}
    factors = dict.fromkeys((unit.unit_id for unit in units), 1.0)
    for _ in range(_ROUNDS if len(units) > 1 else 1):
        result, spans = _simulated(units, work, shapes, cost, factors, until_s)
        factors = _factors(units, shapes, cost, spans, work.duration_s)
    return figures(result.records, window_of(work)).throughput.requests_per_s


def _simulated(
    units: Sequence[UnitSpec],
    work: Work,
    shapes: Mapping[str, ModelShape],
    cost: Cost,
    factors: Mapping[str, float],
    until_s: float,
) -> tuple[SimResult, list[JobSpan]]:
    spans: list[JobSpan] = []
    simulated = [
        SimUnit(
            unit,
            {
                model.name: SimModel(shapes[model.name], SlowedCost(cost, factors[unit.unit_id]))
                for model in unit.models
            },
        )
        for unit in units
    ]
    result = simulate(simulated, work.arrivals(), until_s=until_s, on_job=spans.append)
    return result, spans


def _factors(
    units: Sequence[UnitSpec],
    shapes: Mapping[str, ModelShape],
    cost: Cost,
    spans: Sequence[JobSpan],
    duration_s: float,
) -> dict[str, float]:
    """How much slower each is for what the others draw, on average over the time."""
    draws = {unit.unit_id: _draw(unit, shapes, cost, spans, duration_s) for unit in units}
    factors = {}
    for unit_id, (when_busy, _) in draws.items():
        others = sum(mean for other, (_, mean) in draws.items() if other != unit_id)
        factors[unit_id] = cost.slowdown((when_busy, others)) if others else 1.0
    return factors


def _draw(
    unit: UnitSpec,
    shapes: Mapping[str, ModelShape],
    cost: Cost,
    spans: Sequence[JobSpan],
    duration_s: float,
) -> tuple[float, float]:
    """Share of the bandwidth that its decodes draw while they run, and on average."""
    (*_, model) = unit.models
    mine = [span for span in spans if span.unit_id == unit.unit_id and span.start_s < duration_s]
    if not mine:
        return 0.0, 0.0
    rows = sum(span.num_rows for span in mine) / len(mine)
    busy = min(1.0, sum(span.end_s - span.start_s for span in mine) / duration_s)
    context = model.mean_prompt_tokens + model.mean_output_tokens / 2
    share = unit.workers[0].shares[0]
    draw = cost.decode_draw(shapes[model.name], 1, share, rows, context)
    return draw, busy * draw
