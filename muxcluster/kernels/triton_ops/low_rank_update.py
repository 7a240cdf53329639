"""Products of low rank of several adapters: inputs to their ranks, then ranks to their outputs.

A tile is some tokens of one adapter. Its first program multiplies all inputs with the adapter's
rows of `down`, others each add the product with `up` to a stretch of outputs.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from muxcluster.kernels.products.low_rank_update import TILE_TOKENS, check_update
from muxcluster.kernels.triton_ops.specimens.specimen import Specimen

_RANKS = 16  # at once, the least that a product on tensor cores takes
_STEP = 128  # inputs at once
_OUTPUTS = 128  # of a program
_NUM_STAGES = 3  # of loads that run ahead of the products


@triton.jit
def _tile(tiles, starts, TOKENS: tl.constexpr):
    """Return the first row of the program's adapter, how many it has, the first of its tokens, and
    which of a tile's tokens there are."""
    entry = tiles + 3 * tl.program_id(0)
    adapter = tl.load(entry)
    start = tl.load(starts + adapter)
    num_ranks = tl.load(starts + adapter + 1) - start
    return start, num_ranks, tl.load(entry + 1), tl.arange(0, TOKENS) < tl.load(entry + 2)


@triton.jit
def _to_ranks(
    low,  # [tokens with an adapter, most ranks]
    inputs,  # [tokens, inputs]
    down,  # [ranks, inputs]
    starts,  # int32 [adapters + 1]
    tokens,  # int64 [tokens with an adapter]
    tiles,  # int32 [tiles, 3]
    num_inputs,
    input_stride,
    most_ranks,
    TOKENS: tl.constexpr,
    RANKS: tl.constexpr,
    STEP: tl.constexpr,
):
    start, num_ranks, first, is_token = _tile(tiles, starts, TOKENS)
    place = first + tl.arange(0, TOKENS)
    token = tl.load(tokens + place, mask=is_token, other=0)
    rank = tl.program_id(1) * RANKS + tl.arange(0, RANKS)
    is_rank = rank < num_ranks
    total = tl.zeros((TOKENS, RANKS), dtype=tl.float32)
    for begin in range(0, num_inputs, STEP):
        column = begin + tl.arange(0, STEP)
        is_input = column < num_inputs
        x = tl.load(
            inputs + token[:, None] * input_stride + column[None, :],
            mask=is_token[:, None] & is_input[None, :],
            other=0.0,
        )
        weight = tl.load(
            down + (start + rank).to(tl.int64)[:, None] * num_inputs + column[None, :],
            mask=is_rank[:, None] & is_input[None, :],
            other=0.0,
        )
        total = tl.dot(x, tl.trans(weight), total, input_precision="ieee")
    here = low + place.to(tl.int64)[:, None] * most_ranks + rank[None, :]
    inside = is_token[:, None] & (rank < most_ranks)[None, :]
    tl.store(here, total.to(low.dtype.element_ty), mask=inside)


@triton.jit
def _to_outputs(
    outputs,  # [tokens, outputs]
    low,  # [tokens with an adapter, most ranks]
    up,  # [ranks, outputs]
    starts,  # int32 [adapters + 1]
    tokens,  # int64 [tokens with an adapter]
    tiles,  # int32 [tiles, 3]
    num_outputs,
    output_stride,
    most_ranks,
    TOKENS: tl.constexpr,
    RANKS: tl.constexpr,
    OUTPUTS: tl.constexpr,
):
    start, num_ranks, first, is_token = _tile(tiles, starts, TOKENS)
    place = first + tl.arange(0, TOKENS)
    token = tl.load(tokens + place, mask=is_token, other=0)
    output = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    is_output = output < num_outputs
    here = outputs + token[:, None] * output_stride + output[None, :]
    inside = is_token[:, None] & is_output[None, :]
    total = tl.load(here, mask=inside, other=0.0).to(tl.float32)
    for begin in range(0, num_ranks, RANKS):
        rank = begin + tl.arange(0, RANKS)
        is_rank = rank < num_ranks
        x = tl.load(
            low + place.to(tl.int64)[:, None] * most_ranks + rank[None, :],
            mask=is_token[:, None] & is_rank[None, :],
            other=0.0,
        )
        weight = tl.load(
            up + (start + rank).to(tl.int64)[:, None] * num_outputs + output[None, :],
            mask=is_rank[:, None] & is_output[None, :],
            other=0.0,
        )
        total = tl.dot(x, weight, total, input_precision="ieee")
    tl.store(here, total.to(outputs.dtype.element_ty), mask=inside)


def low_rank_update(
    outputs: Tensor,
    inputs: Tensor,
    down: Tensor,
    up: Tensor,
    starts: Tensor,
    most_ranks: int,
    tokens: Tensor,
    tiles: Tensor,
) -> None:
    """As `muxcluster.kernels.products.low_rank_update.low_rank_update`."""
    check_update(outputs, inputs, down, up, starts, tokens, tiles)
    if not len(tiles) or not most_ranks:
        return
    low = torch.empty((len(tokens), most_ranks), dtype=inputs.dtype, device=inputs.device)
    _to_ranks[(len(tiles), triton.cdiv(most_ranks, _RANKS))](
        low,
        inputs,
        down,
        starts,
        tokens,
        tiles,
        inputs.shape[1],
        inputs.stride(0),
        most_ranks,
        TOKENS=TILE_TOKENS,
        RANKS=_RANKS,
        STEP=_STEP,
        num_stages=_NUM_STAGES,
    )
    _to_outputs[(len(tiles), triton.cdiv(outputs.shape[1], _OUTPUTS))](
        outputs,
        low,
        up,
        starts,
        tokens,
        tiles,
        outputs.shape[1],
        outputs.stride(0),
        most_ranks,
        TOKENS=TILE_TOKENS,
        RANKS=_RANKS,
        OUTPUTS=_OUTPUTS,
        num_stages=_NUM_STAGES,
    )


_INDICES = {"starts": "*i32", "tokens": "*i64", "tiles": "*i32"}


def _to_ranks_specimen(dtype: str) -> Specimen:
    floats = dict.fromkeys(("low", "inputs", "down"), f"*{dtype}")
    integers = dict.fromkeys(("num_inputs", "input_stride", "most_ranks"), "i32")
    constants = {"TOKENS": TILE_TOKENS, "RANKS": _RANKS, "STEP": _STEP}
    return Specimen(
        name=f"low_rank_update to ranks {dtype}",
        kernel=_to_ranks,
        signature={**floats, **_INDICES, **integers, **dict.fromkeys(constants, "constexpr")},
        constants=constants,
        divisible=frozenset((*floats, *_INDICES, *integers)),
        num_stages=_NUM_STAGES,
    )


def _to_outputs_specimen(dtype: str) -> Specimen:
    floats = dict.fromkeys(("outputs", "low", "up"), f"*{dtype}")
    integers = dict.fromkeys(("num_outputs", "output_stride", "most_ranks"), "i32")
    constants = {"TOKENS": TILE_TOKENS, "RANKS": _RANKS, "OUTPUTS": _OUTPUTS}
    return Specimen(
        name=f"low_rank_update to outputs {dtype}",
        kernel=_to_outputs,
        signature={**floats, **_INDICES, **integers, **dict.fromkeys(constants, "constexpr")},
        constants=constants,
        divisible=frozenset((*floats, *_INDICES, *integers)),
        num_stages=_NUM_STAGES,
    )


SPECIMENS = tuple(
    make(dtype) for make in (_to_ranks_specimen, _to_outputs_specimen) for dtype in ("bf16", "fp16")
)
