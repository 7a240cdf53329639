"""Specimens of the attention kernels: what their signatures have in common."""

from collections.abc import Mapping, Set
from typing import Any

from kernels.triton_ops.specimen import Specimen

TYPES = {
    "table": "*i32",
    "slots": "*i32",
    "lengths": "*i32",
    "query_offsets": "*i32",
    "starts": "*i32",
    "positions": "*i32",
    "from_right": "*i1",
    "scale": "fp32",
    "soft_cap": "fp32",
}


def attention_specimen(
    name: str,
    kernel: Any,
    types: Mapping[str, str],
    constants: Mapping[str, object],
    strides: Set[str],
    capabilities: tuple[int, ...] = (80, 90, 100),
    **options: int,
) -> Specimen:
    """`types` names the element types of the pointers; other arguments are constants or i32.

    strides: those that are multiples of 16, beside every pointer. options: Specimen's num_warps
    and num_stages.
    """
    known = TYPES | dict(types) | dict.fromkeys(constants, "constexpr")
    signature = {argument: known.get(argument, "i32") for argument in kernel.arg_names}
    pointers = {argument for argument, kind in signature.items() if kind[0] == "*"}
    divisible = frozenset(pointers | strides)
    return Specimen(
        name, kernel, signature, constants, divisible, capabilities=capabilities, **options
    )
