"""Memory of a unit: weights, buffers, and the KV blocks that are left (design.md §3, §4)."""

from collections.abc import Iterable, Sequence

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
_LOGITS_ROWS = 256  # most rows with fp32 logits at the same time


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
    """Weights of the model on all GPUs of a mesh, those that each of them has whole included."""
    return tp * part_of(demand.shape, tp).num_params * demand.itemsize


def activation_bytes(demand: Demand, limits: Limits, tp: int = 1) -> int:
    """Hidden states, MLP inner states and logits of the largest job, on all GPUs of a mesh.

    Every GPU has hidden states and logits whole, and the inner states of its part of the MLP.
    """
    shape, part = demand.shape, part_of(demand.shape, tp)
    inner = part.intermediate_size * part.experts_per_token + part.shared_intermediate_size
    per_token = 6 * shape.hidden_size + 3 * inner
    logits = 2 * 4 * _LOGITS_ROWS * shape.vocab_size
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
    """Blocks of one sequence of `num_tokens` on all GPUs of a mesh.

    Raises DoesNotFit if a block is too small, or as `columns_of`.
    """
    column = columns_of(demand, bytes_per_block, tp)
    if column.tokens == 0:
        raise DoesNotFit(
            demand.name, f"a block holds fewer than 8 tokens of head_dim {demand.shape.head_dim}"
        )
    return tp * column.num_blocks(num_tokens)


def table_bytes(demand: Demand, bytes_per_block: int, tp: int = 1) -> int:
    """Block tables and token histories on all GPUs of a mesh, 4 bytes an entry."""
    blocks = sequence_blocks(demand, demand.max_model_len, bytes_per_block, tp)
    return 4 * demand.max_seqs * (blocks + tp * (demand.max_model_len + 1))


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


def recorded_bytes(gpu: Gpu, tp: int, demands: Sequence[Demand], execution: Execution) -> int:
    """Return the memory that the recorded decode steps of all models hold on the mesh.

    In each place every model keeps fp32 logits of as many rows as it has sequences. The working
    memory of a step is taken once, for the largest: 16-bit logits, later the sampler's four and a
    half bytes a logit, hidden states beside them (tests/engine/gpu/test_step_memory.py), and
    cuBLAS's workspace. A CPU records nothing.
    """
    if gpu.is_cpu:
        return 0
    num_logits = [demand.max_seqs * demand.shape.vocab_size for demand in demands]
    per_place = 4 * sum(num_logits) + 5 * max(num_logits) + _WORKSPACE_BYTES
    return tp * execution.num_recordings * per_place


def kv_blocks(
    gpu: Gpu, tp: int, demands: Sequence[Demand], limits: Limits, execution: Execution
) -> int:
    """Return the blocks of the unit's pool over its `tp` GPUs, with all of `demands` loaded; a
    multiple of `tp`.

    Raises DoesNotFit as `check_split`; naming the model that takes the most, if the weights leave
    no room; or if some model's longest sequence is larger than the pool.
    """
    per_block = block_bytes(demands, limits)
    most = usable_bytes(gpu, tp, execution)
    for demand in demands:
        check_split(demand, tp)
    need = sum(weight_bytes(each, tp) + table_bytes(each, per_block, tp) for each in demands)
    need += recorded_bytes(gpu, tp, demands, execution)
    need += max(activation_bytes(demand, limits, tp) for demand in demands)
    usable = most - need
    if usable < 0:
        largest = max(demands, key=lambda each: weight_bytes(each, tp))
        raise DoesNotFit(largest.name, _weights_reason(gpu, tp, demands, need, most), -usable)
    pool = usable if limits.kv_bytes is None else min(usable, limits.kv_bytes)
    for demand in demands:
        need = sequence_blocks(demand, demand.max_model_len, per_block, tp) * per_block
        if need > pool:
            reason = _sequence_reason(demand, pool, per_block, tp)
            raise DoesNotFit(demand.name, reason, need - pool)
    return pool // per_block // tp * tp


def _weights_reason(gpu: Gpu, tp: int, demands: Sequence[Demand], need: int, usable: int) -> str:
    weights = sum(weight_bytes(demand, tp) for demand in demands)
    whose = "" if len(demands) == 1 else f" of {len(demands)} models"
    return (
        f"{weights / GIB:.2f} GiB of weights{whose} and {(need - weights) / GIB:.2f} of buffers on "
        f"{tp} x {gpu.name}, {usable / GIB:.2f} usable"
    )


def _sequence_reason(demand: Demand, pool: int, per_block: int, tp: int) -> str:
    column = columns_of(demand, per_block, tp)
    fits = pool // per_block // tp // column.num_blocks(1) * column.tokens
    return (
        f"one sequence of max_model_len {demand.max_model_len} is larger than the KV pool of "
        f"{pool / GIB:.2f} GiB; {fits} tokens would fit"
    )
