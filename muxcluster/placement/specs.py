"""Specifications of a plan's units: what the simulator runs and what worker processes receive.

The engine's differ in paths and dtypes of weights alone (`config.units` adds them).
"""

from collections.abc import Mapping
from dataclasses import replace

from muxcluster.core.kvshape import KvShape
from muxcluster.core.request import Slo
from muxcluster.core.unitspec import LENDING_PACKINGS, ModelSpec, UnitSpec
from muxcluster.placement.columns import Columns
from muxcluster.placement.execution import Execution, execution_of, scheduler_of
from muxcluster.placement.hardware import GIB, Gpu
from muxcluster.placement.memory import (
    block_bytes,
    check_split,
    columns_of,
    resident_bytes,
    wake_s,
)
from muxcluster.placement.plan import Plan, PlannedUnit
from muxcluster.placement.problem import Demand, Problem
from muxcluster.placement.shapes.division import part_of

# Default host memory of a unit for the content of lent blocks; on a CPU at most the pool's size.
_CPU_HOST_BYTES = GIB
_GPU_HOST_BYTES = 16 * GIB


def unit_specs(problem: Problem, plan: Plan) -> tuple[UnitSpec, ...]:
    """Return one specification per unit of the plan, in its order; of one rank, if it has several.

    The rate of a model with replicas is divided among them as the plan does. Raises KeyError for a
    model or node that the problem does not name, DoesNotFit for a model that cannot be divided
    among a unit's GPUs, CannotRun as `execution_of`.
    """
    demands = {demand.name: demand for demand in problem.demands}
    gpus = {node.name: node.gpu for node in problem.nodes}
    parts = _parts(plan)
    return tuple(
        _spec(problem, unit, gpus[unit.node], demands, parts[index])
        for index, unit in enumerate(plan.units)
    )


def with_execution(spec: UnitSpec, execution: Execution, problem: Problem) -> UnitSpec:
    """Return `spec` with another way of running its jobs, on the same blocks."""
    scheduler = scheduler_of(execution, problem.policy, problem.limits.token_budget)
    return replace(
        spec, workers=execution.workers, partition=execution.partition, scheduler=scheduler
    )


def _parts(plan: Plan) -> list[dict[str, float]]:
    """Return for each unit, by model, its part of the model's rate: of its planned throughput, or
    equal parts where the plan serves none of it."""
    throughputs = [{model.name: model.throughput for model in unit.models} for unit in plan.units]
    names = {name for unit in throughputs for name in unit}
    served = {name: sum(unit.get(name, 0.0) for unit in throughputs) for name in names}
    counts = {name: sum(name in unit for unit in throughputs) for name in names}
    return [
        {
            name: throughput / served[name] if served[name] > 0 else 1 / counts[name]
            for name, throughput in unit.items()
        }
        for unit in throughputs
    ]


def _spec(
    problem: Problem,
    unit: PlannedUnit,
    gpu: Gpu,
    demands: Mapping[str, Demand],
    parts: Mapping[str, float],
) -> UnitSpec:
    tp, policy = unit.tp, problem.policy
    mine = [demands[model.name] for model in unit.models]
    for demand in mine:
        check_split(demand, tp)
    bytes_of_block = block_bytes(mine, problem.limits)
    execution = execution_of(gpu, unit, policy)
    devices = tuple("cpu" if gpu.is_cpu else f"cuda:{index}" for index in unit.gpus)
    models = [
        _model(demand, parts[demand.name], bytes_of_block, tp, policy.prefix_caching)
        for demand in mine
    ]
    if unit.resident_bytes:
        sizes = [resident_bytes(gpu, tp, each, bytes_of_block, execution) // tp for each in mine]
        models = [
            _with_residency(spec, demand, size, gpu, tp)
            for spec, demand, size in zip(models, mine, sizes, strict=True)
        ]
    spec = UnitSpec(
        unit_id=unit.id,
        models=tuple(models),
        num_blocks=unit.kv_blocks // tp,
        block_bytes=bytes_of_block,
        workers=(),
        device=devices[0],
        num_threads=(policy.num_threads or gpu.num_sms) if gpu.is_cpu else policy.num_threads or 1,
        num_host_blocks=_host_blocks(problem, gpu, unit.kv_blocks, bytes_of_block) // tp,
        host_link=gpu.host_link,
        tp=tp,
        rank_devices=devices if tp > 1 else (),
        resident_bytes=unit.resident_bytes // tp,
    )
    return with_execution(spec, execution, problem)


def _with_residency(
    spec: ModelSpec, demand: Demand, num_bytes: int, gpu: Gpu, tp: int
) -> ModelSpec:
    """Return the specification of a model of a unit in which not all are resident at once.

    num_bytes: what it takes of one rank while it is resident.
    """
    seconds = wake_s(gpu, demand, tp)
    return replace(spec, residency=demand.residency, resident_bytes=num_bytes, wake_s=seconds)


def _model(
    demand: Demand, part: float, bytes_of_block: int, tp: int, prefix_caching: bool
) -> ModelSpec:
    """Return one rank's part of a model that is divided over `tp` ranks."""
    column = columns_of(demand, bytes_of_block, tp)
    slo = None
    if demand.ttft_s is not None and demand.tpot_s is not None:
        slo = Slo(demand.ttft_s, demand.tpot_s)
    return ModelSpec(
        name=demand.name,
        path="",
        shape=_kv_shape(demand, column),
        vocab_size=demand.shape.vocab_size,
        max_model_len=demand.max_model_len,
        eos_token_ids=(),
        max_seqs=demand.max_seqs,
        batch_seqs=demand.batch_seqs,
        prefix_caching=prefix_caching and not column.state_columns,
        rate_per_s=demand.rate * part,
        mean_prompt_tokens=demand.prompt_tokens,
        mean_output_tokens=demand.output_tokens,
        slo=slo,
        weight_bytes=part_of(demand.shape, tp).active_bytes(demand.itemsize),
        kv_dtype=demand.shape.kv_dtype,
        window=demand.shape.window,
        window_layers=demand.shape.window_layers,
        speculation=demand.speculation,
        state_columns=column.state_columns,
    )


def _kv_shape(demand: Demand, column: Columns) -> KvShape:
    form = demand.shape.kv_format(demand.itemsize)
    sizes = (column.num_layers, column.num_heads, column.head_dim)
    return KvShape(*sizes, form.itemsize, form.scale_bytes)


def _host_blocks(problem: Problem, gpu: Gpu, num_blocks: int, bytes_of_block: int) -> int:
    """Return host memory in blocks, of all ranks."""
    policy = problem.policy
    if policy.scheduler.packing not in LENDING_PACKINGS:
        return 0
    if policy.host_bytes is not None:
        return policy.host_bytes // bytes_of_block
    if gpu.is_cpu:
        return min(num_blocks, _CPU_HOST_BYTES // bytes_of_block)
    return _GPU_HOST_BYTES // bytes_of_block
