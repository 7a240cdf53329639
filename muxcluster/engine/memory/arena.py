"""Memory of one unit that its workers share: KV pool, block tables, token histories."""

import math
import mmap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from muxcluster.core.unitspec import ModelSpec, UnitSpec
from muxcluster.engine.memory.pinning import pinned_zeros
from muxcluster.kernels.layout import slot_bytes

POOL, HOST = "pool", "host"

_KV_DTYPES: Mapping[str, torch.dtype] = {
    "int8": torch.int8,
    "fp8_e4m3": torch.float8_e4m3fn,
}


@dataclass(frozen=True, slots=True, eq=False)
class ModelArena:
    """One model's part."""

    # int32 [num_rows, layers, kv_heads, max_columns + state columns], block ids; those of states
    # lie behind those of tokens, which attention counts from 0 on
    tables: Tensor
    # int32 [num_rows + 1, max_model_len + 1], prompt then output tokens of each row; the last row
    # is no sequence's: rows that fill up a batch of fixed size write there
    history: Tensor
    # bool [num_rows], True where a sequence fills its blocks from the last place
    from_right: Tensor
    block_tokens: int  # token places of a block for this model
    # How keys and values are stored, as `kernels.layout` takes it; None: in the model's dtype
    kv_dtype: torch.dtype | None = None
    num_state_columns: int = 0  # as `ModelSpec.state_columns`

    @property
    def state_tables(self) -> Tensor:
        """Blocks of states, int32 [num_rows, layers, kv_heads, state columns]; a view."""
        return self.tables[..., self.tables.shape[3] - self.num_state_columns :]


# Returns memory for a name, shape and type: "host" in host memory, all else where models run.
Take = Callable[[str, tuple[int, ...], torch.dtype], Tensor]


class Arena:
    """Pool, tables and histories of a unit, and host memory for saved slots.

    pool: uint8 [num_blocks, block_bytes], all models' blocks. host: uint8 [num_host_blocks,
    block_bytes]. By default they are allocated here and start as zeros. On the CPU they are
    anonymous shared mappings: children that are forked later see the same memory, blocks never
    written take none, and it is freed with the last process. If the pool is on a GPU, host memory
    is pinned at just this size.
    """

    def __init__(self, spec: UnitSpec, take: Take | None = None) -> None:
        """take: allocates the memory; its contents are left as they are.

        Raises ValueError where a model's tokens do not fit `spec.block_bytes`, or its `shape`
        counts other bytes than its `kv_dtype` takes.
        """
        take = take or partial(allocate, torch.device(spec.device))
        self.pool = take(POOL, (spec.num_blocks, spec.block_bytes), torch.uint8)
        self.host = take(HOST, (spec.num_host_blocks, spec.block_bytes), torch.uint8)
        self._models = {
            model.name: _model_arena(model, spec.block_bytes, take) for model in spec.models
        }

    def model(self, name: str) -> ModelArena:
        return self._models[name]


def _model_arena(spec: ModelSpec, block_bytes: int, take: Take) -> ModelArena:
    shape = spec.shape
    block_tokens = shape.block_tokens(block_bytes)
    max_columns = -(-spec.max_model_len // block_tokens) + spec.state_columns
    tables = (spec.num_rows, shape.num_layers, shape.num_kv_heads, max_columns)
    history = (spec.num_rows + 1, spec.max_model_len + 1)
    return ModelArena(
        tables=take(f"{spec.name}/tables", tables, torch.int32),
        history=take(f"{spec.name}/history", history, torch.int32),
        from_right=take(f"{spec.name}/from_right", (spec.num_rows,), torch.bool),
        block_tokens=block_tokens,
        kv_dtype=_kv_dtype(spec),
        num_state_columns=spec.state_columns,
    )


def _kv_dtype(spec: ModelSpec) -> torch.dtype | None:
    if spec.kv_dtype == "auto":
        return None
    found = _KV_DTYPES[spec.kv_dtype]
    taken, counted = slot_bytes(found, spec.shape.head_dim), spec.shape.slot_bytes
    if taken != counted:
        raise ValueError(
            f"{spec.name}: a key in {spec.kv_dtype} takes {taken} bytes, its shape counts {counted}"
        )
    return found


def allocate(device: torch.device, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return zeros; host memory is such that `device` reaches it fast."""
    if name == HOST and device.type != "cpu":
        return pinned_zeros(shape, dtype)
    num_bytes = math.prod(shape) * dtype.itemsize
    if device.type != "cpu" or not num_bytes:  # zero bytes cannot be mapped
        return torch.zeros(shape, dtype=dtype, device=device)
    mapping = mmap.mmap(-1, num_bytes)  # MAP_SHARED and anonymous; the tensor keeps it alive
    return torch.frombuffer(mapping, dtype=dtype).view(shape)
