"""What the specimens of the attention kernels have in common."""

from collections.abc import Mapping, Set
from typing import Any

from muxcluster.kernels.layout import SCALE_BYTES
from muxcluster.kernels.triton_ops.specimens.specimen import ALL, Specimen

# The engine's index arrays are int64; `tests/bench/test_specimens.py` compares them with what it
# launches.
TYPES = {
    "table": "*i32",
    "table_rows": "*i64",
    "lengths": "*i64",
    "query_offsets": "*i64",
    "starts": "*i64",
    "positions": "*i64",
    "group_offsets": "*i64",
    "prefix_lengths": "*i64",
    "from_right": "*u1",
    "scale": "fp32",
    "soft_cap": "fp32",
}


def attention_specimen(
    name: str,
    kernel: Any,
    types: Mapping[str, str],
    constants: Mapping[str, object],
    strides: Set[str],
    capabilities: tuple[int, ...] = ALL,
    **options: int,
) -> Specimen:
    """Return a specimen; arguments in neither `types` nor `constants` are i32.

    types: element types of the pointers. strides: those that are multiples of 16, beside every
    pointer. options: Specimen's num_warps and num_stages.
    """
    known = TYPES | dict(types) | dict.fromkeys(constants, "constexpr")
    signature = {argument: known.get(argument, "i32") for argument in kernel.arg_names}
    pointers = {argument for argument, kind in signature.items() if kind[0] == "*"}
    divisible = frozenset(pointers | strides)
    return Specimen(
        name, kernel, signature, constants, divisible, capabilities=capabilities, **options
    )


def pool_block(block: int, head_dim: int, stored: str = "") -> tuple[int, int]:
    """Return elements of half a block and tokens of a block with `policy.block_tokens: block`.

    stored: type of 8-bit keys and values in a pool of 16-bit models: "i8", or "u8" and "fp8e4nv"
    for e4m3 (`rounded_kv.readable`).
    """
    half = 128 * block * (2 if stored else 1)
    if stored == "i8":
        return half, half // (head_dim + SCALE_BYTES)
    return half, half // head_dim // 8 * 8
