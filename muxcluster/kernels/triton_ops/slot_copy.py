"""Copies runs of slots as words of up to eight bytes: one program per run, K and V together."""

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from muxcluster.kernels.slot_copy import check_slot_copy, widest_word
from muxcluster.kernels.triton_ops.specimens.specimen import Specimen

# Words of K and of V in flight in one program: 8 KiB each, 16 bytes eight times a thread.
COPIED_WORDS = 1024


@triton.jit
def slot_copy_kernel(
    destination,
    source,
    runs,
    run_stride,
    WORDS: tl.constexpr,
    BLOCK_W: tl.constexpr,
    SLOTS: tl.constexpr,
    DESTINATION_TOKENS: tl.constexpr,
    DESTINATION_HALF: tl.constexpr,
    SOURCE_TOKENS: tl.constexpr,
    SOURCE_HALF: tl.constexpr,
):
    """destination, source: words [num_blocks, 2 * HALF]. runs: int [n, 3]. Grid: n.

    WORDS: words a slot, padded to BLOCK_W. SLOTS: slots copied at once.
    """
    runs += tl.program_id(0).to(tl.int64) * run_stride
    read = tl.load(runs).to(tl.int64)
    written = tl.load(runs + 1).to(tl.int64)
    count = tl.load(runs + 2).to(tl.int32)
    words = tl.arange(0, BLOCK_W)
    for start in range(0, count, SLOTS):
        slots = start + tl.arange(0, SLOTS)
        copied = (slots < count)[:, None] & (words < WORDS)[None, :]
        origin = read + slots
        target = written + slots
        origin = origin // SOURCE_TOKENS * (2 * SOURCE_HALF) + origin % SOURCE_TOKENS * WORDS
        target = target // DESTINATION_TOKENS * (2 * DESTINATION_HALF) + (
            target % DESTINATION_TOKENS * WORDS
        )
        origin = source + origin[:, None] + words[None, :]
        target = destination + target[:, None] + words[None, :]
        keys = tl.load(origin, mask=copied)
        values = tl.load(origin + SOURCE_HALF, mask=copied)
        tl.store(target, keys, mask=copied)
        tl.store(target + DESTINATION_HALF, values, mask=copied)


def slot_copy(
    destination: Tensor,
    source: Tensor,
    runs: Tensor,
    *,
    slot_bytes: int,
    destination_tokens: int,
    source_tokens: int,
) -> None:
    """As `muxcluster.kernels.slot_copy.slot_copy`, on the tensors' device. Runs are not checked.

    Nothing waits for the device. Staging may also be pinned host memory, which a GPU reads and
    writes over the bus.
    """
    check_slot_copy(destination, source, runs, slot_bytes, destination_tokens, source_tokens)
    if runs.stride(1) != 1:
        raise ValueError(f"runs must have its numbers side by side, got strides {runs.stride()}")
    if not len(runs):
        return
    word = widest_word(destination, source, slot_bytes)
    slot_copy_kernel[(len(runs),)](
        destination.view(word),
        source.view(word),
        runs,
        runs.stride(0),
        **_constants(
            slot_bytes // word.itemsize,
            (destination_tokens, destination.shape[1] // 2 // word.itemsize),
            (source_tokens, source.shape[1] // 2 // word.itemsize),
        ),
        num_warps=4,
    )


def _constants(words: int, destination: tuple[int, int], source: tuple[int, int]) -> dict[str, Any]:
    """Return the kernel's constants. destination, source: tokens and words of half a block."""
    padded = triton.next_power_of_2(words)
    most = triton.next_power_of_2(max(destination[0], source[0]))
    return {
        "WORDS": words,
        "BLOCK_W": padded,
        "SLOTS": max(1, min(most, COPIED_WORDS // padded)),
        "DESTINATION_TOKENS": destination[0],
        "DESTINATION_HALF": destination[1],
        "SOURCE_TOKENS": source[0],
        "SOURCE_HALF": source[1],
    }


def _specimen(name: str, words: int, destination_tokens: int, source_tokens: int) -> Specimen:
    """Return a specimen with pool blocks of 8 KiB, staging blocks of one slot, 8-byte words."""
    pool, staging = 512, words
    constants = _constants(
        words,
        (destination_tokens, staging if destination_tokens == 1 else pool),
        (source_tokens, staging if source_tokens == 1 else pool),
    )
    types = {"destination": "*i64", "source": "*i64", "runs": "*i64", "run_stride": "i32"}
    signature = types | dict.fromkeys(constants, "constexpr")
    return Specimen(
        f"slot_copy {name}",
        slot_copy_kernel,
        signature,
        constants,
        frozenset({"destination", "source", "runs"}),
    )


SPECIMENS: tuple[Specimen, ...] = (
    _specimen("gather d128", 32, 1, 16),
    _specimen("scatter d128", 32, 16, 1),
    _specimen("move d64", 16, 32, 32),
    _specimen("gather d80", 20, 1, 24),
    _specimen("move d256", 64, 8, 8),
)
