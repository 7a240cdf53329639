"""From a plan to the specifications of units, and the models that the edge serves."""

from collections.abc import Sequence
from dataclasses import replace

from muxcluster.config.load import Config, ConfiguredModel
from muxcluster.config.partitions import of_ranks, partition_of, pool_blocks, recorded_bytes
from muxcluster.config.planning import ITEMSIZE, dtype_of, nodes_of
from muxcluster.config.schema import PolicySection
from muxcluster.core.errors import ConfigError
from muxcluster.core.kvshape import KvShape, block_bytes
from muxcluster.core.request import Slo
from muxcluster.core.served import ServedModel
from muxcluster.core.unitspec import ModelSpec, SchedulerSpec, UnitSpec
from muxcluster.placement.columns import columns
from muxcluster.placement.hardware import GIB, Gpu, cpu
from muxcluster.placement.plan import Plan, PlannedUnit
from muxcluster.placement.problem import Node

_CPU_HOST_GIB = 1.0
_GPU_HOST_GIB = 16.0


def unit_specs(
    config: Config, plan: Plan, nodes: Sequence[Node] | None = None
) -> tuple[UnitSpec, ...]:
    """One specification per unit of the plan, ready to start.

    nodes: as given to `plan_for`. Raises ConfigError if the plan and the file disagree, a
    model has a shape but no path, or its heads cannot be divided among a unit's GPUs.
    """
    known = {node.name: node for node in nodes or nodes_of(config)}
    return tuple(_unit(config, unit, known) for unit in plan.units)


def served_models(config: Config) -> tuple[ServedModel, ...]:
    """Return what the edge knows of each model. Raises ConfigError for one without a path."""
    return tuple(
        ServedModel(
            name=model.name,
            path=_path(config, model),
            max_model_len=model.max_model_len,
            vocab_size=model.facts.shape.vocab_size,
            eos_token_ids=model.facts.eos_token_ids,
            slo=_slo(model),
        )
        for model in config.models
    )


def _unit(config: Config, unit: PlannedUnit, nodes: dict[str, Node]) -> UnitSpec:
    if unit.node not in nodes:
        raise ConfigError(config.file, "cluster.nodes", f"no node {unit.node!r} of the plan")
    gpu = _engine_gpu(config, nodes[unit.node].gpu)
    by_name = {model.name: model for model in config.models}
    for planned in unit.models:
        if planned.name not in by_name:
            raise ConfigError(config.file, "models", f"no model {planned.name!r} of the plan")
    models = [by_name[planned.name] for planned in unit.models]
    for model in models:
        _check_split(config, model, unit)
    policy = config.policy
    dtypes = [dtype_of(config, model, tuple(nodes.values())) for model in models]
    bytes_of_block = block_bytes(policy.block_tokens, max(ITEMSIZE[dtype] for dtype in dtypes))
    whole = (_model(config, *each, bytes_of_block) for each in zip(models, dtypes, strict=True))
    specs = tuple(_per_rank(spec, unit.tp) for spec in whole)
    threads = _threads(config, gpu)
    partition, workers = (
        partition_of(config, gpu, threads, len(specs)) if unit.tp == 1 else of_ranks(config, unit)
    )
    blocks = unit.kv_blocks
    if policy.kv_gb is None and not gpu.is_cpu:
        step_bytes = unit.tp * recorded_bytes(specs)
        blocks = pool_blocks(
            blocks, partition, workers, block_bytes=bytes_of_block, step_bytes=step_bytes
        )
    devices = tuple("cpu" if gpu.is_cpu else f"cuda:{index}" for index in unit.gpus)
    return UnitSpec(
        unit_id=unit.id,
        models=specs,
        num_blocks=blocks // unit.tp,
        block_bytes=bytes_of_block,
        workers=workers,
        scheduler=SchedulerSpec(
            lane=policy.scheduler if len(workers) > 1 else _alone(policy.scheduler),
            may_unshare=policy.sharing == "auto",
            packing=policy.packing,
            token_budget=policy.token_budget,
            max_decode_rows=policy.max_decode_rows,
            quota_period_s=policy.quota_period_s,
            shared_prefix_tokens=policy.shared_prefix_tokens,
            pipeline_depth=_depth(config, gpu, unit),
        ),
        device=devices[0],
        partition=partition,
        num_threads=threads,
        num_host_blocks=_host_blocks(policy, gpu, unit.kv_blocks, bytes_of_block) // unit.tp,
        host_link=gpu.host_link,
        tp=unit.tp,
        rank_devices=devices if unit.tp > 1 else (),
    )


def _model(config: Config, model: ConfiguredModel, dtype: str, bytes_of_block: int) -> ModelSpec:
    shape, section = model.facts.shape, model.section
    num_tokens = section.prompt_tokens + section.output_tokens
    column = columns(shape, ITEMSIZE[dtype], bytes_of_block, num_tokens)
    return ModelSpec(
        name=model.name,
        path=_path(config, model),
        shape=KvShape(column.num_layers, column.num_heads, column.head_dim, ITEMSIZE[dtype]),
        vocab_size=shape.vocab_size,
        max_model_len=model.max_model_len,
        eos_token_ids=model.facts.eos_token_ids,
        dtype=dtype,
        load_format=section.load_format,
        seed=section.seed,
        max_seqs=section.max_seqs,
        prefix_caching=config.policy.prefix_caching,
        rate_per_s=section.rate,
        mean_prompt_tokens=section.prompt_tokens,
        mean_output_tokens=section.output_tokens,
        slo=_slo(model),
        weight_bytes=shape.active_params * ITEMSIZE[dtype],
        backend=section.backend,
        trust_remote_code=section.trust_remote_code,
    )


def _per_rank(spec: ModelSpec, tp: int) -> ModelSpec:
    """Return one rank's part of a model whose KV heads are divided over `tp` ranks."""
    heads = spec.shape.num_kv_heads // tp
    shape = replace(spec.shape, num_kv_heads=heads)
    return replace(spec, shape=shape, weight_bytes=spec.weight_bytes // tp)


def _check_split(config: Config, model: ConfiguredModel, unit: PlannedUnit) -> None:
    """Raise ConfigError if the model cannot be divided among the unit's GPUs."""
    heads, kv_heads = model.facts.shape.num_heads, model.facts.shape.num_kv_heads
    key = f"models[{config.models.index(model)}]"
    if model.facts.shape.state_size and unit.tp > 1:
        message = (
            f"a model with states cannot be divided among the {unit.tp} GPUs of unit {unit.id}"
        )
        raise ConfigError(config.file, key, message)
    if heads % unit.tp or kv_heads % unit.tp:
        message = f"{heads} heads and {kv_heads} KV heads cannot be divided among the {unit.tp}"
        raise ConfigError(config.file, key, f"{message} GPUs of unit {unit.id}")


def _host_blocks(policy: PolicySection, gpu: Gpu, num_blocks: int, bytes_of_block: int) -> int:
    """Return host memory in blocks; on a CPU at most as many as the pool could lend."""
    if policy.packing != "hybrid":
        return 0
    if policy.host_memory_gib is not None:
        return int(policy.host_memory_gib * GIB) // bytes_of_block
    if gpu.is_cpu:
        return min(num_blocks, int(_CPU_HOST_GIB * GIB) // bytes_of_block)
    return int(_GPU_HOST_GIB * GIB) // bytes_of_block


def _engine_gpu(config: Config, gpu: Gpu) -> Gpu:
    """Return the hardware that computes: with `cluster.engine: cpu` one core per declared GPU."""
    if config.cluster.engine != "cpu" or gpu.is_cpu:
        return gpu
    return cpu(config.policy.num_threads or 1, gpu.memory_bytes)


def _depth(config: Config, gpu: Gpu, unit: PlannedUnit) -> int:
    """Return the decode jobs of a worker at a time.

    One on a CPU, where a second was measured to gain nothing. Raises ConfigError if several GPUs
    run the jobs of a unit, which take one at a time.
    """
    asked = config.policy.pipeline_depth
    if asked == "auto":
        return 1 if gpu.is_cpu or unit.tp > 1 else 2
    if asked > 1 and unit.tp > 1:
        message = (
            f"unit {unit.id} spans {unit.tp} GPUs, which take one job at a time: use auto or 1"
        )
        raise ConfigError(config.file, "policy.pipeline_depth", message)
    return asked


def _threads(config: Config, gpu: Gpu) -> int:
    if config.policy.num_threads is not None:
        return config.policy.num_threads
    return gpu.num_sms if gpu.is_cpu else 1


def _alone(lane: str) -> str:
    """Return the lane of a unit with one worker: without sharing, adbs becomes `mixed`."""
    return "mixed" if lane == "adbs" else lane


def _path(config: Config, model: ConfiguredModel) -> str:
    if model.path is None:
        index = config.models.index(model)
        raise ConfigError(
            config.file, f"models[{index}].path", "missing; a shape is enough to plan, not to serve"
        )
    return str(model.path)


def _slo(model: ConfiguredModel) -> Slo | None:
    slo = model.section.slo
    return None if slo is None else Slo(slo.ttft, slo.tpot)
