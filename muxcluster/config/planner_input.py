"""The planner's input from a configuration: its models, nodes, limits and policy."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from muxcluster.config.load import Config, ConfiguredModel
from muxcluster.config.profiles import read_profile
from muxcluster.config.schema import ModelSection, NodeSection, PolicySection
from muxcluster.core.errors import ConfigError
from muxcluster.core.residency import Residency
from muxcluster.core.unitspec import SchedulerSpec, SpeculationSpec
from muxcluster.placement.cost import Profile
from muxcluster.placement.execution import CannotRun, UnitPolicy, check_partition
from muxcluster.placement.hardware import GIB, Gpu, cpu, gpu_named, local_cores, local_memory_bytes
from muxcluster.placement.memory import batch_seqs, block_bytes, sequence_blocks
from muxcluster.placement.problem import Backlog, Demand, Limits, Node, Problem

ITEMSIZE = {"float32": 4, "bfloat16": 2, "float16": 2}
# A cpu unit's default pool holds a quarter of the longest sequences it has rows for.
_POOL_PART = 4


def problem(config: Config, nodes: tuple[Node, ...]) -> Problem:
    """Return the planner's input.

    Raises memory.DoesNotFit if a KV block is too small, ConfigError for a profile that cannot be
    read.
    """
    demands = tuple(_demand(model, dtype_of(config, model, nodes)) for model in config.models)
    policy = config.policy
    limits = _limits(policy, demands, is_modest=runs_on_cpus(config, nodes))
    most_rows = policy.max_decode_rows
    return Problem(
        tuple(replace(each, batch_seqs=batch_seqs(each, limits, most_rows)) for each in demands),
        nodes,
        replace(limits, parked_bytes=_parked_bytes(config, nodes)),
        objective=policy.objective,
        profiles=tuple(_profiles(config)),
        policy=_unit_policy(config, nodes),
    )


def profile_paths(config: Config) -> tuple[Path, ...]:
    """The files of `cluster.profiles`; relative ones start from the file's own directory."""
    folder = config.file.parent
    return tuple(folder / Path(text).expanduser() for text in config.cluster.profiles)


def nodes_of(config: Config) -> tuple[Node, ...]:
    """Return the nodes of the file; this machine if it lists none."""
    return tuple(_node(section) for section in config.cluster.listed())


def runs_on_cpus(config: Config, nodes: Sequence[Node]) -> bool:
    """Return whether every unit computes on CPUs, regardless of declared GPUs."""
    return config.cluster.engine == "cpu" or all(node.gpu.is_cpu for node in nodes)


def _unit_policy(config: Config, nodes: Sequence[Node]) -> UnitPolicy:
    """Raises ConfigError for a partition that no node of its kind has."""
    policy = config.policy
    host_gib = policy.host_memory_gib
    found = UnitPolicy(
        scheduler=SchedulerSpec(
            lane=policy.scheduler,
            may_unshare=policy.sharing == "auto",
            packing=policy.packing,
            joins_forced=policy.join_forced_tokens,
            token_budget=policy.token_budget,
            max_decode_rows=policy.max_decode_rows,
            quota_period_s=policy.quota_period_s,
            shared_prefix_tokens=policy.shared_prefix_tokens,
            wakes="foresight" if policy.foresight else "deadline",
        ),
        partition=policy.partition,
        pipeline_depth=None if policy.pipeline_depth == "auto" else policy.pipeline_depth,
        num_threads=policy.num_threads,
        host_bytes=None if host_gib is None else int(host_gib * GIB),
        prefix_caching=policy.prefix_caching,
    )
    for gpu in {engine_gpu(config, node.gpu) for node in nodes}:
        try:
            check_partition(gpu, found.partition)
        except CannotRun as error:
            raise ConfigError(config.file, f"policy.{error.key}", str(error)) from error
    return found


def engine_gpu(config: Config, gpu: Gpu) -> Gpu:
    """Return the hardware that computes: with `cluster.engine: cpu` one core per declared GPU."""
    if config.cluster.engine != "cpu" or gpu.is_cpu:
        return gpu
    return cpu(config.policy.num_threads or 1, gpu.memory_bytes)


def dtype_of(config: Config, model: ConfiguredModel, nodes: Sequence[Node]) -> str:
    """Return the dtype of the model's weights and KV, with "auto" resolved."""
    if model.section.dtype != "auto":
        return model.section.dtype
    if runs_on_cpus(config, nodes):
        return "float32"
    return model.facts.dtype if model.facts.dtype in ITEMSIZE else "bfloat16"


def _limits(policy: PolicySection, demands: Sequence[Demand], *, is_modest: bool) -> Limits:
    limits = Limits(policy.block_tokens, policy.token_budget)
    if policy.kv_gb is not None:
        return replace(limits, kv_bytes=int(policy.kv_gb * GIB))
    if is_modest:
        return replace(limits, kv_bytes=_modest_pool(demands, limits))
    return limits


def _parked_bytes(config: Config, nodes: Sequence[Node]) -> int | None:
    """Return the host memory for parked weights of each GPU; of nodes with different numbers of
    GPUs, the least."""
    gib = config.cluster.host_memory_gib
    return None if gib is None else int(gib * GIB) // max(node.num_gpus for node in nodes)


def _profiles(config: Config) -> Iterator[Profile]:
    for index, path in enumerate(profile_paths(config)):
        try:
            yield read_profile(path)
        except ValueError as error:
            key = f"cluster.profiles[{index}]"
            raise ConfigError(config.file, key, f"{path}: {error}") from error


def _node(section: NodeSection) -> Node:
    if section.gpu != "cpu":
        return Node(section.name, section.gpus, gpu_named(section.gpu))
    memory = local_memory_bytes() if section.memory_gb is None else int(section.memory_gb * GIB)
    return Node(section.name, 1, cpu(section.cores or local_cores(), memory))


def _demand(model: ConfiguredModel, dtype: str) -> Demand:
    section = model.section
    is_dense = section.backend == "dense"
    shape = model.facts.shape
    if is_dense or model.facts.is_dense:  # a model's own cache gives nothing back
        shape = replace(shape, window=0, window_layers=(), pages_states=False)
    # defaults of a model with a short context; given lengths have been checked (config.load)
    part = min(1.0, model.max_model_len / (section.prompt_tokens + section.output_tokens))
    return Demand(
        name=section.name,
        shape=shape,
        rate=section.rate,
        prompt_tokens=section.prompt_tokens * part,
        output_tokens=section.output_tokens * part,
        max_model_len=model.max_model_len,
        max_seqs=section.max_seqs,
        itemsize=ITEMSIZE[dtype],
        weight=section.weight,
        ttft_s=None if section.slo is None else section.slo.ttft,
        tpot_s=None if section.slo is None else section.slo.tpot,
        residency=Residency(section.residency),
        undivided="it runs on the dense backend" if is_dense else model.facts.undivided,
        backlog=_backlog(section, part),
        is_rounded=model.facts.is_rounded,
        constrained_share=section.constrained_share,
        adapter_bytes=ITEMSIZE[dtype] * _adapter_elements(model),
        speculation=_speculation(section),
    )


def _adapter_elements(model: ConfiguredModel) -> int:
    """Return the numbers of its adapters, and of its places for others as far as that is known.

    A place is counted as if each layer had the seven linears of Llama's kind.
    """
    found = sum(each.files.num_elements for each in model.adapters)
    places, shape = model.section.adapter_places, model.facts.shape
    if places is None:
        return found
    heads = (shape.num_heads + shape.num_kv_heads) * shape.head_dim
    attention = 4 * shape.hidden_size + 2 * heads
    mlp = 3 * (shape.hidden_size + shape.intermediate_size)
    return found + places.count * places.rank * shape.num_layers * (attention + mlp)


def _speculation(section: ModelSection) -> SpeculationSpec | None:
    asked = section.speculation
    if asked is None:
        return None
    return SpeculationSpec(
        num_tokens=asked.num_speculative_tokens,
        longest_match=asked.prompt_lookup_max,
        shortest_match=asked.prompt_lookup_min,
        is_forced=asked.when == "always",
        acceptance=asked.acceptance,
    )


def _backlog(section: ModelSection, part: float) -> Backlog | None:
    """part: of the model's mean lengths that its context has room for."""
    batch = section.batch
    if batch is None:
        return None
    return Backlog(
        batch.tokens_per_s,
        batch.prompt_tokens or section.prompt_tokens * part,
        batch.output_tokens or section.output_tokens * part,
    )


def _modest_pool(demands: Sequence[Demand], limits: Limits) -> int:
    """Return the default pool in bytes; the actual memory limits it later."""
    if not demands:
        return 0
    per_block = block_bytes(demands, limits)
    blocks = 0
    for demand in demands:
        num_sequences = -(-demand.max_seqs // _POOL_PART)
        blocks += num_sequences * sequence_blocks(demand, demand.max_model_len, per_block)
    return blocks * per_block
