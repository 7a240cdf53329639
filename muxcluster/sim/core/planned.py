"""Conversion of a plan to units that can be simulated."""

from muxcluster.core.job import Phase, WorkerSpec
from muxcluster.core.kvshape import KvShape, block_bytes
from muxcluster.core.request import Slo
from muxcluster.core.unitspec import ModelSpec, SchedulerSpec, UnitSpec
from muxcluster.placement.cost import cost_for
from muxcluster.placement.hardware import Gpu
from muxcluster.placement.memory import columns_of
from muxcluster.placement.plan import Plan, PlannedModel, PlannedUnit
from muxcluster.placement.problem import Demand, Problem
from muxcluster.scheduling.packing import PACKINGS
from muxcluster.sim.core.unit import SimModel, SimUnit

_SHARING_LANES = frozenset({"adbs", "round-robin"})


def units_of(
    plan: Plan, problem: Problem, policy: SchedulerSpec | None = None
) -> tuple[SimUnit, ...]:
    """Return one unit per unit of the plan.

    policy: lane and limits; None is ADBS with the problem's token budget. Lanes that share SMs get
    one prefill worker and a decode worker per model, on all rungs of the GPU; the others get one
    worker on the whole GPU. Raises KeyError for a model or node that the problem does not name.
    """
    chosen = policy or SchedulerSpec(token_budget=problem.limits.token_budget)
    demands = {demand.name: demand for demand in problem.demands}
    gpus = {node.name: node.gpu for node in problem.nodes}
    planned = [model for unit in plan.units for model in unit.models]
    served = {name: sum(m.throughput for m in planned if m.name == name) for name in demands}
    return tuple(
        _unit(unit, gpus[unit.node], demands, served, problem, chosen) for unit in plan.units
    )


def _unit(
    unit: PlannedUnit,
    gpu: Gpu,
    demands: dict[str, Demand],
    served: dict[str, float],
    problem: Problem,
    policy: SchedulerSpec,
) -> SimUnit:
    mine = [demands[model.name] for model in unit.models]
    bytes_per_block = block_bytes(problem.limits.block_tokens, max(d.itemsize for d in mine))
    spec = UnitSpec(
        unit_id=unit.id,
        models=tuple(
            _model(m, demands[m.name], served[m.name], bytes_per_block) for m in unit.models
        ),
        num_blocks=unit.kv_blocks,
        block_bytes=bytes_per_block,
        workers=workers_of(policy.lane, gpu, len(mine)),
        scheduler=policy,
        num_host_blocks=unit.kv_blocks if PACKINGS[policy.packing].may_lend else 0,
        host_link=gpu.host_link * unit.tp,
    )
    models = {
        demand.name: SimModel(demand.shape, cost_for(gpu, demand.itemsize, problem.profiles))
        for demand in mine
    }
    return SimUnit(spec, models, unit.tp, gpu.host_link)


def workers_of(lane: str, gpu: Gpu, num_models: int) -> tuple[WorkerSpec, ...]:
    """Return the workers of a unit, see `units_of`."""
    if lane not in _SHARING_LANES:
        return (WorkerSpec(0, (1.0,)),)
    prefill = WorkerSpec(0, gpu.shares, frozenset({Phase.PREFILL}))
    decodes = (
        WorkerSpec(1 + index, gpu.shares, frozenset({Phase.DECODE})) for index in range(num_models)
    )
    return (prefill, *decodes)


def _model(model: PlannedModel, demand: Demand, served: float, bytes_per_block: int) -> ModelSpec:
    """Return a model's specification.

    served: its requests/s over all units of the plan; the rate is split in proportion.
    """
    part = model.throughput / served if served > 0 else 1.0
    column = columns_of(demand, bytes_per_block)
    slo = None
    if demand.ttft_s is not None and demand.tpot_s is not None:
        slo = Slo(demand.ttft_s, demand.tpot_s)
    return ModelSpec(
        name=demand.name,
        path="",
        shape=KvShape(column.num_layers, column.num_heads, column.head_dim, demand.itemsize),
        vocab_size=demand.shape.vocab_size,
        max_model_len=demand.max_model_len,
        eos_token_ids=(),
        max_seqs=demand.max_seqs,
        rate_per_s=demand.rate * part,
        mean_prompt_tokens=demand.prompt_tokens,
        mean_output_tokens=demand.output_tokens,
        slo=slo,
        weight_bytes=demand.shape.active_params * demand.itemsize,
    )
