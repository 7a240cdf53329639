"""Copies keys and values of slots between blocks and staging; plain-torch twin of the kernel."""

import torch
from torch import Tensor

from muxcluster.kernels.on_gpu import triton_on_gpu


@triton_on_gpu
def slot_copy(
    destination: Tensor,
    source: Tensor,
    runs: Tensor,
    *,
    slot_bytes: int,
    destination_tokens: int,
    source_tokens: int,
) -> None:
    """Copy runs of slots, K and V, as bytes: checkpoint (gather), restore (scatter) and move.

    destination, source: uint8 [num_blocks, block_bytes], K half then V half; the destination is
        changed in place. Either may be the pool, or staging: blocks of one slot, [num_slots,
        2 * slot_bytes], which is [num_slots, 2, head_dim] of the model's type. There a token's
        K and V lie together, so that any stretch of rows is whole tokens: a sequence's checkpoint
        is one stretch and one transfer, and may be restored in runs cut elsewhere, as fresh
        blocks need. Both may be the same pool (a move from block to block).
    runs: int32 or int64 [n, 3]: first slot in the source, first slot in the destination, number
        of slots. Slots are physical, whichever end their sequence fills from, and counted over
        the whole tensor: block * tokens a block + place; in staging the row. A run that passes
        the end of a block goes on in the block of the next id.
    slot_bytes: head_dim * itemsize. destination_tokens, source_tokens: block_tokens, 1 in
        staging.

    No slot may be written twice, nor one that is read be written. Bytes that make no whole slot
    are left as they are.
    Raises ValueError for wrong shapes, types or strides, and on CPU for runs that leave a tensor.
    """
    check_slot_copy(destination, source, runs, slot_bytes, destination_tokens, source_tokens)
    first_source, first_destination, counts = runs.long().unbind(1)
    _check_runs("source", first_source, counts, source.shape[0] * source_tokens)
    _check_runs("destination", first_destination, counts, destination.shape[0] * destination_tokens)
    ends = counts.cumsum(0)
    offsets = torch.arange(int(counts.sum())) - (ends - counts).repeat_interleave(counts)
    read = first_source.repeat_interleave(counts) + offsets
    written = first_destination.repeat_interleave(counts) + offsets
    word = widest_word(destination, source, slot_bytes)
    slots = _places(source, word, slot_bytes, source_tokens)[
        read // source_tokens, :, read % source_tokens
    ]
    places = _places(destination, word, slot_bytes, destination_tokens)
    places[written // destination_tokens, :, written % destination_tokens] = slots


def check_slot_copy(
    destination: Tensor,
    source: Tensor,
    runs: Tensor,
    slot_bytes: int,
    destination_tokens: int,
    source_tokens: int,
) -> None:
    """Raise ValueError for arguments that are not as `slot_copy` says; reads no values."""
    if slot_bytes < 1:
        raise ValueError(f"slot_bytes must be at least 1, got {slot_bytes}")
    _check_blocks("destination", destination, slot_bytes * destination_tokens)
    _check_blocks("source", source, slot_bytes * source_tokens)
    if runs.dtype not in (torch.int32, torch.int64) or runs.dim() != 2 or runs.shape[1] != 3:
        raise ValueError(
            f"runs must be int32 or int64 [n, 3], got {runs.dtype} {tuple(runs.shape)}"
        )


def widest_word(destination: Tensor, source: Tensor, slot_bytes: int) -> torch.dtype:
    """Return the widest type of which slots and halves of both are whole numbers: fewest copies."""
    lengths = (slot_bytes, *(each.shape[1] // 2 for each in (destination, source)))
    starts = (destination.storage_offset(), source.storage_offset())
    words = (torch.int64, torch.int32, torch.int16)
    fits = (
        word for word in words if all(number % word.itemsize == 0 for number in (*lengths, *starts))
    )
    return next(fits, torch.uint8)


def _check_blocks(name: str, blocks: Tensor, half_bytes: int) -> None:
    if blocks.dtype != torch.uint8 or blocks.dim() != 2 or not blocks.is_contiguous():
        raise ValueError(
            f"{name} must be a contiguous uint8 [num_blocks, block_bytes], "
            f"got {blocks.dtype} {tuple(blocks.shape)} with strides {blocks.stride()}"
        )
    if half_bytes < 1 or blocks.shape[1] % 2 or blocks.shape[1] // 2 < half_bytes:
        raise ValueError(
            f"{name}'s blocks of {blocks.shape[1]} bytes cannot hold halves of {half_bytes} bytes"
        )


def _check_runs(name: str, firsts: Tensor, counts: Tensor, num_slots: int) -> None:
    if ((firsts < 0) | (counts < 0) | (firsts + counts > num_slots)).any():
        raise ValueError(f"a run leaves the {name}'s {num_slots} slots")


def _places(blocks: Tensor, word: torch.dtype, slot_bytes: int, tokens: int) -> Tensor:
    """Return the blocks as [num_blocks, 2, tokens, words per slot]."""
    words = slot_bytes // word.itemsize
    halves = blocks.view(word).view(len(blocks), 2, blocks.shape[1] // 2 // word.itemsize)
    return halves[:, :, : tokens * words].view(len(blocks), 2, tokens, words)
