"""Adds what adapters of low rank make of their tokens; plain-torch twin of the Triton kernels."""

import torch
from torch import Tensor
from torch.nn.functional import linear

from muxcluster.kernels.on_gpu import triton_on_gpu
from muxcluster.kernels.rows import check_rows

TILE_TOKENS = 16  # most of a tile on a GPU; on a CPU a tile may have any number


@triton_on_gpu
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
    """Add x @ down.T @ up of its own adapter to each token that has one (LoRA, Hu et al. 2021).

    outputs: [tokens, out], changed in place; may be columns of a wider tensor. inputs: [tokens,
    in]. down: [ranks, in], up: [ranks, out], contiguous, of the inputs' type: those of all
    adapters, one after the other. starts: int32 [adapters + 1], the first of these rows of each
    adapter, and the end; an adapter may have none. most_ranks: the most rows of an adapter.
    tokens: int64 [n], which have an adapter, those of one side by side, none twice. tiles: int32
    [tiles, 3]: an adapter, the first of its entries in `tokens`, and their number, which may be 0
    and on a GPU is TILE_TOKENS at most.

    x @ down.T is rounded to the inputs' type, the sum is rounded once. Raises ValueError for wrong
    shapes, types or strides.
    """
    check_update(outputs, inputs, down, up, starts, tokens, tiles)
    rows = starts.tolist()
    for adapter, first, count in tiles.tolist():
        if not count or rows[adapter] == rows[adapter + 1]:
            continue
        mine = slice(rows[adapter], rows[adapter + 1])
        places = _places(tokens[first : first + count])
        low = linear(inputs[places], down[mine])
        if isinstance(places, slice):
            outputs[places].addmm_(low, up[mine])
        else:
            outputs[places] = torch.addmm(outputs[places], low, up[mine])


def _places(tokens: Tensor) -> slice | Tensor:
    """Return ascending tokens side by side as a slice: they need not be gathered."""
    first, last = int(tokens[0]), int(tokens[-1])
    return slice(first, last + 1) if last - first + 1 == len(tokens) else tokens


def check_update(
    outputs: Tensor,
    inputs: Tensor,
    down: Tensor,
    up: Tensor,
    starts: Tensor,
    tokens: Tensor,
    tiles: Tensor,
) -> None:
    """Raise ValueError unless the arguments are what `low_rank_update` says."""
    for name, each in (("outputs", outputs), ("inputs", inputs), ("down", down), ("up", up)):
        check_rows(name, each)
        if each.dtype != inputs.dtype:
            raise ValueError(f"{name} must be {inputs.dtype}, got {each.dtype}")
    sizes = {
        "tokens": (len(outputs), len(inputs)),
        "inputs": (down.shape[1], inputs.shape[1]),
        "ranks": (len(up), len(down)),
        "outputs": (up.shape[1], outputs.shape[1]),
    }
    for what, (mine, its) in sizes.items():
        if mine != its:
            raise ValueError(f"the numbers of {what} must be equal, got {mine} and {its}")
    if tiles.dim() != 2 or tiles.shape[1] != 3:
        raise ValueError(f"tiles must be [tiles, 3], got {list(tiles.shape)}")
    if not (down.is_contiguous() and up.is_contiguous()):
        raise ValueError("down and up must be contiguous")
    integers = (("starts", starts, torch.int32), ("tiles", tiles, torch.int32))
    for name, each, dtype in (*integers, ("tokens", tokens, torch.int64)):
        if each.dtype != dtype or not each.is_contiguous():
            raise ValueError(f"{name} must be contiguous {dtype}, got {each.dtype}")
