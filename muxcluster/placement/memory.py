"""Memory of a unit: weights, buffers, and the KV blocks that are left (design.md §3, §4)."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from muxcluster.core.unitspec import MOST_LOGIT_PLACES
from muxcluster.placement.columns import Columns, columns
from muxcluster.placement.execution import Execution
from muxcluster.placement.hardware import GIB, Gpu
from muxcluster.placement.problem import Demand, Limits
from muxcluster.placement.shapes.division import part_of, refusal

_CONTEXT_BYTES = GIB // 2  # CUDA context and kernels of one process
# Counted on every GPU, even if a unit has one process there: its allocator needs some memory too.
_LEAST_CONTEXTS = 3
# Buffers of a NCCL communicator on each of its GPUs; assumed, not yet measured. One a unit lies
# within the least contexts.
_COMMUNICATOR_BYTES = GIB // 4
_WORKSPACE_BYTES = 32 * 2**20  # of cuBLAS for every stream, set by torch on Hopper
# Of a wake: seconds beside the copy (assumed), and bytes/s at which one core reads and packs
# weights (measured: 0.9 to 1 GB/s on a slow machine).
_GPU_WAKE_S = 0.1
_CPU_WAKE_S = 0.5
_CPU_PACKED_PER_S = 1e9
_BATCH_TABLES_BYTES = GIB // 2  # of the tables of one model's batch rows, at most


class DoesNotFit(Exception):
    """A model does not fit; the message names it and the missing memory.

    missing_bytes: None if no amount of memory would help (it cannot be split so).
    """

    def __init__(self, model: str, reason: str, missing_bytes: int | None = None) -> None:
        super().__init__(f"{model} does not fit: {reason}{_missing_text(missing_bytes)}")
        self.model = model
        self.reason = reason
        self.missing_bytes = missing_bytes


class DoNotFitTogether(DoesNotFit):
    """Each model fits alone, but the cluster has no place for all; `model` is one without."""

    def __init__(self, num_models: int, model: str, reason: str, missing_bytes: int | None) -> None:
        super().__init__(model, reason, missing_bytes)
        together = f"{num_models} models do not fit together: {reason}"
        self.args = (together + _missing_text(missing_bytes),)


def least_missing(refusals: Iterable[DoesNotFit]) -> DoesNotFit:
    """Return the refusal with the least missing memory; those that no memory would help come
    last."""
    return min(refusals, key=lambda each: (each.missing_bytes is None, each.missing_bytes or 0))


def _missing_text(missing_bytes: int | None) -> str:
    return "" if missing_bytes is None else f" ({missing_bytes / GIB:.2f} GiB missing)"


def check_split(demand: Demand, tp: int) -> None:
    """Raise DoesNotFit if the model cannot be divided among `tp` GPUs."""
    reason = refusal(demand.shape, tp)
    if demand.undivided and tp > 1:
        reason = f"{demand.undivided}, so it cannot be split over {tp} GPUs"
    if reason:
        raise DoesNotFit(demand.name, reason)


def parts_of(demand: Demand, tp: int) -> int:
    """Return `tp`, or 1 for a model that cannot be divided so, which `compat` may plan all the
    same."""
    return 1 if refusal(demand.shape, tp) or demand.undivided else tp


def weight_bytes(demand: Demand, tp: int = 1) -> int:
    """Weights of the model and its adapters on all GPUs of a mesh, with those that each of them has
    whole."""
    return tp * (part_of(demand.shape, tp).weight_bytes(demand.itemsize) + demand.adapter_bytes)


def activation_bytes(demand: Demand, limits: Limits, tp: int = 1) -> int:
    """Hidden states, MLP inner states and logits of the largest job, on all GPUs of a mesh; of
    latent attention its queries, too.

    Every GPU has hidden states and logits whole, and the inner states of its part of the MLP.
    """
    shape, part = demand.shape, part_of(demand.shape, tp)
    inner = part.intermediate_size * part.experts_per_token + part.shared_intermediate_size
    per_token = 6 * shape.hidden_size + 3 * inner
    if part.latent is not None:
        per_token += part.latent.num_activations(part.num_heads)
    logits = 2 * 4 * MOST_LOGIT_PLACES * shape.vocab_size
    return tp * (limits.token_budget * per_token * demand.itemsize + logits)


def columns_of(demand: Demand, bytes_per_block: int, tp: int = 1) -> Columns:
    """Return the column size of one GPU's part of the model, chosen for a sequence of mean length.

    Raises DoesNotFit if the model cannot be divided so.
    """
    check_split(demand, tp)
    whole = demand.prompt_tokens + demand.output_tokens
    return columns(part_of(demand.shape, tp), demand.itemsize, bytes_per_block, whole)


def block_bytes(demands: Sequence[Demand], limits: Limits) -> int:
    """Bytes of a block of the unit: `limits.block_tokens` at head_dim 128 in its widest dtype."""
    return 2 * 128 * limits.block_tokens * max(demand.itemsize for demand in demands)


def sequence_blocks(demand: Demand, num_tokens: int, bytes_per_block: int, tp: int = 1) -> int:
    """Blocks of one sequence of `num_tokens` on all GPUs of a mesh, all tokens in every layer.

    Raises DoesNotFit if a block is too small, or as `columns_of`.
    """
    return tp * _column(demand, bytes_per_block, tp).num_blocks(num_tokens)


def held_blocks(demand: Demand, num_tokens: int, bytes_per_block: int, tp: int = 1) -> int:
    """Blocks that a sequence of `num_tokens` holds while it decodes, windows' own alone.

    Raises DoesNotFit as `sequence_blocks`.
    """
    return tp * _column(demand, bytes_per_block, tp).num_held(num_tokens)


def _column(demand: Demand, bytes_per_block: int, tp: int) -> Columns:
    column = columns_of(demand, bytes_per_block, tp)
    if column.tokens == 0:
        raise DoesNotFit(
            demand.name, f"a block holds fewer than 8 tokens of head_dim {demand.shape.head_dim}"
        )
    return column


def table_bytes(demand: Demand, bytes_per_block: int, tp: int = 1) -> int:
    """Block tables and token histories on all GPUs of a mesh, 4 bytes an entry."""
    blocks = sequence_blocks(demand, demand.max_model_len, bytes_per_block, tp)
    return 4 * demand.num_rows * (blocks + tp * (demand.max_model_len + 1))


def batch_seqs(demand: Demand, limits: Limits, most_rows: int) -> int:
    """Return the rows that a model has for batch sequences beside its `max_seqs`.

    All of its rows are as many as a decode job holds (`most_rows`), or as a pool of a given size
    holds sequences of an eighth of the greatest length; tables of the rows beside `max_seqs` take
    _BATCH_TABLES_BYTES at most. Neither nodes nor expected lengths and rates count, which change
    while a unit runs: it would have to start again.
    """
    most = most_rows - demand.max_seqs
    if limits.kv_bytes is not None:
        held = demand.shape.sequence_bytes(max(1, demand.max_model_len // 8), demand.itemsize)
        most = min(most, int(limits.kv_bytes / held) - demand.max_seqs)
    try:
        one = replace(demand, max_seqs=1, batch_seqs=0)
        row_bytes = table_bytes(one, block_bytes((demand,), limits))
    except DoesNotFit:  # no block holds a token of it
        return 0
    return max(0, min(most, _BATCH_TABLES_BYTES // row_bytes))


def usable_bytes(gpu: Gpu, tp: int, execution: Execution | None = None) -> int:
    """Memory of a mesh for weights, KV and buffers, without contexts and communicators.

    execution: None counts the fewest processes that a unit has.
    """
    usable = int(tp * gpu.memory_bytes * gpu.usable_share)
    if gpu.is_cpu:
        return usable
    num_contexts = 1 if execution is None else execution.num_contexts
    num_communicators = 0 if execution is None else execution.num_communicators
    processes = max(_LEAST_CONTEXTS, num_contexts) * _CONTEXT_BYTES
    return usable - tp * (processes + max(0, num_communicators - 1) * _COMMUNICATOR_BYTES)


def recorded_bytes(gpu: Gpu, tp: int, demand: Demand, execution: Execution) -> int:
    """Return the memory that the recorded decode steps of one model hold on the mesh: in each place
    fp32 logits of `max_seqs` rows. A CPU records nothing.
    """
    if gpu.is_cpu:
        return 0
    return tp * execution.num_recordings * 4 * demand.max_seqs * demand.shape.vocab_size


def recording_bytes(gpu: Gpu, tp: int, demands: Sequence[Demand], execution: Execution) -> int:
    """Return the working memory of recorded decode steps, taken once, for the largest: 16-bit
    logits, later the sampler's four and a half bytes a logit, hidden states beside them
    (tests/engine/gpu/test_step_memory.py), and cuBLAS's workspace. A CPU records nothing.
    """
    if gpu.is_cpu:
        return 0
    most = max(demand.max_seqs * demand.shape.vocab_size for demand in demands)
    return tp * execution.num_recordings * (5 * most + _WORKSPACE_BYTES)


def resident_bytes(
    gpu: Gpu, tp: int, demand: Demand, bytes_per_block: int, execution: Execution
) -> int:
    """Return what a model takes on all GPUs of a mesh while it is resident: weights, tables,
    recorded steps."""
    static = weight_bytes(demand, tp) + table_bytes(demand, bytes_per_block, tp)
    return static + recorded_bytes(gpu, tp, demand, execution)


def wake_s(gpu: Gpu, demand: Demand, tp: int) -> float:
    """Predict the seconds until the model, if parked, is resident on all GPUs of a mesh; 0 for one
    that always is.

    On a GPU a copy over its link to the host. On a CPU a process is forked, and the weights are
    read from the page cache and packed for matrix products; those that are quantised when they
    are loaded are read as the files have them.
    """
    if not demand.may_park:
        return 0.0
    if not gpu.is_cpu:
        return _GPU_WAKE_S + weight_bytes(demand, tp) / tp / gpu.host_link
    plain = replace(demand.shape, weights=None) if demand.is_rounded else demand.shape
    return _CPU_WAKE_S + part_of(plain, tp).weight_bytes(demand.itemsize) / _CPU_PACKED_PER_S


def check_parked(demands: Sequence[Demand], limits: Limits, tp: int) -> None:
    """Raise DoesNotFit if the weights that may be parked exceed the host memory for them.

    Counted are all of them: the copy of a resident model is kept, so that parking copies nothing.
    """
    if limits.parked_bytes is None:
        return
    movable = [demand for demand in demands if demand.may_park]
    need = sum(weight_bytes(demand, tp) for demand in movable)
    most = tp * limits.parked_bytes
    if need > most:
        reason = (
            f"{need / GIB:.2f} GiB of weights that may be parked, {most / GIB:.2f} GiB of host "
            f"memory for them beside {tp} GPU(s)"
        )
        largest = max(movable, key=lambda each: weight_bytes(each, tp))
        raise DoesNotFit(largest.name, reason, need - most)


def kv_blocks(
    gpu: Gpu,
    tp: int,
    demands: Sequence[Demand],
    limits: Limits,
    execution: Execution,
    at_once: Sequence[Demand] | None = None,
) -> int:
    """Return the blocks of the unit's pool over its `tp` GPUs, a multiple of `tp`.

    at_once: the models for whose weights there is memory at the same time (the largest, where the
    others may be parked); None: all of `demands`. Raises DoesNotFit as `check_split`; naming
    the model that takes the most, if the weights leave no room; or if some model's longest sequence
    is larger than the pool.
    """
    per_block = block_bytes(demands, limits)
    most = usable_bytes(gpu, tp, execution)
    for demand in demands:
        check_split(demand, tp)
    at_once = demands if at_once is None else at_once
    need = sum(resident_bytes(gpu, tp, each, per_block, execution) for each in at_once)
    need += recording_bytes(gpu, tp, demands, execution)
    need += max(activation_bytes(demand, limits, tp) for demand in demands)
    usable = most - need
    if usable < 0:
        largest = max(at_once, key=lambda each: weight_bytes(each, tp))
        reason = _weights_reason(gpu, tp, demands, at_once, need, most)
        raise DoesNotFit(largest.name, reason, -usable)
    pool = usable if limits.kv_bytes is None else min(usable, limits.kv_bytes)
    for demand in demands:
        need = sequence_blocks(demand, demand.max_model_len, per_block, tp) * per_block
        if need > pool:
            reason = _sequence_reason(demand, pool, per_block, tp)
            raise DoesNotFit(demand.name, reason, need - pool)
    return pool // per_block // tp * tp


def _weights_reason(
    gpu: Gpu, tp: int, demands: Sequence[Demand], at_once: Sequence[Demand], need: int, usable: int
) -> str:
    weights = sum(weight_bytes(demand, tp) for demand in at_once)
    whose = "" if len(demands) == 1 else f" of {len(demands)} models"
    if len(at_once) < len(demands):
        whose = f" of {len(at_once)} of {len(demands)} models, resident at once,"
    return (
        f"{weights / GIB:.2f} GiB of weights{whose} and {(need - weights) / GIB:.2f} of buffers on "
        f"{tp} x {gpu.name}, {usable / GIB:.2f} usable"
    )


def _sequence_reason(demand: Demand, pool: int, per_block: int, tp: int) -> str:
    column = columns_of(demand, per_block, tp)
    fits = column.num_fitting(pool // per_block // tp)
    return (
        f"one sequence of max_model_len {demand.max_model_len} is larger than the KV pool of "
        f"{pool / GIB:.2f} GiB; {fits} tokens would fit"
    )
