"""Keys and values in the pool, written and attended over by the C++ kernels."""

import logging
from ctypes import CDLL, c_float, c_int, c_int64, c_void_p
from functools import lru_cache

import torch
from torch import Tensor

from muxcluster.kernels.native.build import library

logger = logging.getLogger(__name__)

# numbers of `Stored` in attention.h, by dtype of the view from `half_rows`
_STORED = {torch.float32: 0, torch.bfloat16: 1, torch.int8: 2, torch.uint8: 3}
_SAME = (torch.float32, torch.bfloat16)  # what is stored as it comes
_POINTER = c_void_p
_WHERE = (_POINTER, c_int64, c_int64, c_int64, _POINTER, c_int64, c_int64, _POINTER)


def suits(halves: Tensor, tables: Tensor) -> bool:
    """Return whether the kernels can read this pool here. halves: as of `half_rows`."""
    if halves.dtype not in _STORED or halves.is_cuda:
        return False
    if tables.dtype != torch.int32 or tables.stride(-1) != 1:
        return False
    return _library() is not None


def stored_as(halves: Tensor) -> int:
    """Return the number of `Stored` in attention.h. halves: as of `half_rows`."""
    return _STORED[halves.dtype]


def can_turn() -> bool:
    """Return whether `turn` can be had here."""
    return _library() is not None


def turn(heads: Tensor, turns: Tensor) -> None:
    """Turn neighbouring pairs of fp32 [tokens, heads, head_dim] in place (rotary embedding).

    heads: heads and elements contiguous. turns: complex64 [tokens, 1, head_dim / 2], contiguous.
    """
    found = _library()
    assert found is not None
    tokens, num_heads, head_dim = heads.shape
    found.mux_turn(heads.data_ptr(), tokens, heads.stride(0), num_heads, head_dim, turns.data_ptr())


class NativeWrite:
    """Where new tokens' keys and values lie, for all layers; as `WritePlan`."""

    def __init__(
        self,
        tables: Tensor,
        table_rows: Tensor,
        positions: Tensor,
        from_right: Tensor,
        block_tokens: int,
    ) -> None:
        """tables: int32 [max_seqs, layers, kv_heads, max_columns]; the rest as in `kv_write`."""
        self._pool = _Pool(tables, from_right, block_tokens)
        self._sequences = table_rows.long().contiguous()
        self._positions = positions.long().contiguous()
        self._pool.check(self._positions)

    def write(self, key: Tensor, value: Tensor, halves: Tensor, layer: int) -> None:
        """Store the tokens' K and V [tokens, kv_heads, head_dim] of one layer.

        Raises ValueError where they are not alike, or not of the pool's type.
        """
        found = _library()
        assert found is not None
        self.into(found, key, value, halves, layer)

    def into(self, found: CDLL, key: Tensor, value: Tensor, halves: Tensor, layer: int) -> None:
        """As `write`, by this library."""
        is_other = halves.dtype in _SAME and key.dtype != halves.dtype
        if key.shape != value.shape or key.dtype != value.dtype or is_other:
            raise ValueError(
                f"keys {key.dtype} {tuple(key.shape)} and values {value.dtype} "
                f"{tuple(value.shape)} in a pool of {halves.dtype}"
            )
        if len(key) != len(self._positions):
            raise ValueError(f"{len(key)} keys for {len(self._positions)} positions")
        tokens, kv_heads, head_dim = key.shape
        if halves.dtype not in _SAME:
            key, value = key.float(), value.float()
        key, value = (
            each if each.stride()[1:] == (head_dim, 1) else each.contiguous()
            for each in (key, value)
        )
        found.mux_kv_write(
            stored_as(halves),
            *self._pool.arguments(halves, head_dim, layer),
            tokens,
            kv_heads,
            self._sequences.data_ptr(),
            self._positions.data_ptr(),
            key.data_ptr(),
            key.stride(0),
            value.data_ptr(),
            value.stride(0),
        )


class NativeDecode:
    """How the rows of one decode step attend, for all layers; as `DecodePlan`."""

    def __init__(
        self,
        tables: Tensor,
        table_rows: Tensor,
        lengths: Tensor,
        from_right: Tensor,
        *,
        block_tokens: int,
        sliding_window: int | None = None,
        begins: Tensor | None = None,
    ) -> None:
        """begins: the first position that each row sees. Otherwise as `DecodePlan`."""
        self._pool = _Pool(tables, from_right, block_tokens)
        self._sequences = table_rows.long().contiguous()
        self._ends = lengths.long().contiguous()
        self._pool.check(self._ends - 1)
        if begins is None:
            begins = torch.zeros_like(self._ends)
        if sliding_window is not None:
            begins = torch.maximum(begins, self._ends - sliding_window)
        self._begins = begins.long().contiguous()

    def attend(
        self,
        query: Tensor,
        halves: Tensor,
        layer: int,
        *,
        scale: float,
        soft_cap: float | None,
        log_sums: Tensor | None = None,
    ) -> Tensor:
        """As `DecodePlan.attend`; returns fp32."""
        found = _library()
        assert found is not None
        return self.over(found, query, halves, layer, scale, soft_cap, log_sums)

    def over(
        self,
        found: CDLL,
        query: Tensor,
        halves: Tensor,
        layer: int,
        scale: float,
        soft_cap: float | None,
        log_sums: Tensor | None,
    ) -> Tensor:
        """As `attend`, by this library."""
        rows, kv_heads, group, head_dim = query.shape
        query = query.float().contiguous()
        attended = torch.empty_like(query)
        sums = None if log_sums is None else torch.empty((rows, kv_heads, group))
        found.mux_decode(
            stored_as(halves),
            *self._pool.arguments(halves, head_dim, layer),
            rows,
            kv_heads,
            group,
            self._sequences.data_ptr(),
            self._begins.data_ptr(),
            self._ends.data_ptr(),
            scale,
            soft_cap or 0.0,
            query.data_ptr(),
            attended.data_ptr(),
            None if sums is None else sums.data_ptr(),
            torch.get_num_threads(),
        )
        if log_sums is not None and sums is not None:
            has_keys = (self._ends > self._begins).view(-1, 1, 1)
            log_sums.copy_(torch.where(has_keys, sums, log_sums))
        return attended


class _Pool:
    """Where sequences' blocks are."""

    def __init__(self, tables: Tensor, from_right: Tensor, block_tokens: int) -> None:
        self._tables = tables
        self._from_right = from_right.contiguous()
        self._block_tokens = block_tokens

    def check(self, positions: Tensor) -> None:
        """Raise IndexError where a position lies behind the tables' last column."""
        columns = self._tables.shape[3]
        last = int(positions.max()) // self._block_tokens if len(positions) else 0
        if last >= columns:
            raise IndexError(f"a token of column {last} in tables of {columns}")

    def arguments(self, halves: Tensor, head_dim: int, layer: int) -> tuple[int, ...]:
        """Return a `Layer` of attention.cpp."""
        tables = self._tables
        return (
            halves.data_ptr(),
            2 * halves.stride(0) * halves.itemsize,
            self._block_tokens,
            head_dim,
            tables.data_ptr() + layer * tables.stride(1) * tables.itemsize,
            tables.stride(0),
            tables.stride(2),
            self._from_right.data_ptr(),
        )


@lru_cache
def _library() -> CDLL | None:
    found = library()
    if found is None:
        return None
    found.mux_turn.argtypes = (_POINTER, c_int64, c_int64, c_int64, c_int64, _POINTER)
    found.mux_kv_write.argtypes = (
        c_int, *_WHERE, c_int64, c_int64, _POINTER, _POINTER, _POINTER, c_int64, _POINTER, c_int64,
    )  # fmt: skip
    found.mux_decode.argtypes = (
        c_int, *_WHERE, c_int64, c_int64, c_int64, _POINTER, _POINTER, _POINTER, c_float, c_float,
        _POINTER, _POINTER, _POINTER, c_int,
    )  # fmt: skip
    for name in ("mux_turn", "mux_kv_write", "mux_decode"):
        getattr(found, name).restype = None
    if not _is_right(found):
        logger.warning("native kernels: attention is wrong on this machine; it is torch's")
        return None
    return found


@torch.no_grad()
def _is_right(found: CDLL) -> bool:
    """Return whether a row attends to what was written, from the right of its blocks."""
    generator = torch.Generator().manual_seed(0)
    tokens, head_dim, block_tokens = 11, 24, 4
    tables = torch.tensor([[[[4, 1, 3]]]], dtype=torch.int32)
    halves = torch.zeros((2 * 5, block_tokens * head_dim))
    where = (tables, torch.tensor([0]), torch.tensor([tokens]), torch.tensor([True]))
    key, value = torch.randn((2, tokens, 1, head_dim), generator=generator)
    query = torch.randn((1, 1, 5, head_dim), generator=generator)
    write = NativeWrite(
        tables, torch.zeros(tokens).long(), torch.arange(tokens), where[-1], block_tokens
    )
    write.into(found, key, value, halves, 0)
    decode = NativeDecode(*where, block_tokens=block_tokens)
    attended = decode.over(found, query, halves, 0, 0.3, None, None)
    scores = 0.3 * query[0, 0].double() @ key[:, 0].double().T
    expected = scores.softmax(-1) @ value[:, 0].double()
    return float((attended[0, 0].double() - expected).abs().max()) < 1e-4
