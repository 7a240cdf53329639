"""Every program stores the id of its multiprocessor, then spins."""

# No interpreter runs inline assembly.

import triton
import triton.language as tl
from torch import Tensor

from muxcluster.kernels.sm_ids import check_sm_ids
from muxcluster.kernels.triton_ops.specimens.specimen import Specimen

_SPINS = 20_000


@triton.jit
def _sm_ids(ids, sums, spins):
    """ids: int32 [programs]. sums: float32 [programs]. Grid: programs."""
    program = tl.program_id(0)
    sm_id = tl.inline_asm_elementwise(
        "mov.u32 $0, %smid;", "=r,r", [program], dtype=tl.int32, is_pure=False, pack=1
    )
    total = program.to(tl.float32)
    for _ in range(spins):
        total = total * 0.999 + 1.0
    tl.store(ids + program, sm_id)
    tl.store(sums + program, total)


def sm_ids(ids: Tensor, sums: Tensor) -> None:
    """As `muxcluster.kernels.sm_ids.sm_ids`."""
    check_sm_ids(ids, sums)
    _sm_ids[(len(ids),)](ids, sums, _SPINS)


SPECIMENS = (
    Specimen(
        name="sm_ids",
        kernel=_sm_ids,
        signature={"ids": "*i32", "sums": "*fp32", "spins": "i32"},
        constants={},
        divisible=frozenset(("ids", "sums", "spins")),
    ),
)
