"""Division of a unit's multiprocessors (or cores), and its workers."""

from collections.abc import Sequence

from muxcluster.config.load import Config
from muxcluster.core.errors import ConfigError
from muxcluster.core.job import Phase, WorkerSpec
from muxcluster.core.unitspec import ModelSpec
from muxcluster.placement.hardware import Gpu
from muxcluster.placement.memory import CONTEXT_BYTES, NUM_CONTEXTS
from muxcluster.placement.plan import PlannedUnit

_SHARING_LANES = frozenset({"adbs", "round-robin"})
_ONE_WORKER = (WorkerSpec(0, (1.0,)),)
_PREFILL_SHARES = (0.3, 0.5, 1.0)
# Shares on a GPU: each prefill share but 1.0 has its complement. Each is a process or a context
# from the start on (0.5 GiB under MPS), so there are few.
_DECODE_SHARES = (0.3, 0.5, 0.7, 1.0)
_MOST_DECODES = 2  # decode workers of a GPU, for the same reason
_WORKSPACE_BYTES = 32 * 2**20  # of cuBLAS for every stream, set by torch on Hopper


def partition_of(
    config: Config, gpu: Gpu, num_threads: int, num_models: int
) -> tuple[str, tuple[WorkerSpec, ...]]:
    """Return UnitSpec's `partition` and `workers`. Raises ConfigError if this kind of GPU has no
    such partition.

    "auto" is kept for a GPU that is to be shared: its node chooses the partition.
    """
    asked, lane = config.policy.partition, config.policy.scheduler
    if gpu.is_cpu:
        return _on_cpu(config, lane, num_threads, num_models)
    if asked == "threads":
        message = "threads divides the cores of a cpu node; for GPUs use auto, mps, green or none"
        raise ConfigError(config.file, "policy.partition", message)
    if asked == "none" or lane not in _SHARING_LANES or (asked == "auto" and num_models == 1):
        return "none", _ONE_WORKER
    return asked, _gpu_workers(num_models)


def pool_blocks(
    planned: int,
    partition: str,
    workers: tuple[WorkerSpec, ...],
    *,
    block_bytes: int,
    step_bytes: int,
) -> int:
    """Return the blocks left of a GPU's planned pool; the planner assumed few processes and no
    recorded decode steps.

    step_bytes: of all models' recorded steps in one place: see `recorded_bytes`. `mps`, which
    `auto` may become, has a process per worker and share, each with a CUDA context. At least half
    of the pool is returned: on so small a GPU the start may fail with an error that says so.
    """
    more = 0
    if partition in ("mps", "auto"):
        num_processes = 1 + sum(len(worker.shares) for worker in workers)
        more += max(0, num_processes - NUM_CONTEXTS) * CONTEXT_BYTES
    decoding = (worker for worker in workers if not worker.phases <= {Phase.PREFILL})
    more += sum(len(worker.shares) for worker in decoding) * step_bytes
    return max(planned - -(-more // block_bytes), planned // 2)


def recorded_bytes(models: Sequence[ModelSpec]) -> int:
    """Return the memory that the recorded decode steps of a unit's models hold in one place.

    Every model keeps fp32 logits of as many rows as it has sequences. The working memory of a step
    is taken once, for the largest: 16-bit logits, later the sampler's four and a half bytes a
    logit, hidden states beside them (tests/engine_gpu/test_step_memory.py), and cuBLAS's workspace.
    """
    num_logits = [model.max_seqs * model.vocab_size for model in models]
    return 4 * sum(num_logits) + 5 * max(num_logits) + _WORKSPACE_BYTES


def of_ranks(config: Config, unit: PlannedUnit) -> tuple[str, tuple[WorkerSpec, ...]]:
    """Return partition and workers of a unit over several GPUs. Its ranks run one job at a time: if
    jobs met in another order on another rank, they would deadlock."""
    if config.policy.partition not in ("auto", "none"):
        message = f"unit {unit.id} spans {unit.tp} GPUs, which run one job at a time: use 'none'"
        raise ConfigError(config.file, "policy.partition", message)
    return "none", _ONE_WORKER


def _on_cpu(
    config: Config, lane: str, num_threads: int, num_models: int
) -> tuple[str, tuple[WorkerSpec, ...]]:
    asked = config.policy.partition
    if asked in ("mps", "green"):
        message = f"{asked} divides a GPU; for a cpu node use auto, threads or none"
        raise ConfigError(config.file, "policy.partition", message)
    partition = "threads" if asked == "auto" else asked
    is_shared = partition == "threads" and num_threads > 1
    return partition, _cpu_workers(lane, num_models) if is_shared else _ONE_WORKER


def _gpu_workers(num_models: int) -> tuple[WorkerSpec, ...]:
    """Return one worker for prefills (and mixed jobs without sharing), others for decodes."""
    prefill = WorkerSpec(0, _PREFILL_SHARES, frozenset({Phase.PREFILL, Phase.MIXED}))
    decodes = (
        WorkerSpec(1 + index, _DECODE_SHARES, frozenset({Phase.DECODE}))
        for index in range(min(num_models, _MOST_DECODES))
    )
    return (prefill, *decodes)


def _cpu_workers(lane: str, num_models: int) -> tuple[WorkerSpec, ...]:
    """Return two workers if the lane can use them, each on half of the threads or on all.

    With adbs and one model, return one: it keeps all cores busy alone, and prompts beside its
    decodes would read the weights twice (measured: 1.2 times the tokens/s in one forward pass).
    """
    if lane not in _SHARING_LANES or (lane == "adbs" and num_models == 1):
        return _ONE_WORKER
    return tuple(WorkerSpec(worker_id, (0.5, 1.0)) for worker_id in (0, 1))
