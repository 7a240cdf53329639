"""What `bench/compile_kernels.py` compiles is what the engine launches, by types and divisibility.

A kernel that is launched with arguments of other types is compiled anew, while it serves, to a
binary that nobody looked at.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="Triton's wheels are for Linux")

from bench.kernels.compiled import KernelTypes, modules, specimens, types_of
from bench.kernels.fake_cuda import FakeCuda
from bench.kernels.launches import decode_rows, prompt_rows, recorded
from muxcluster.engine.forward.loaded_model import LoadedModel
from muxcluster.engine.memory.copies import SlotSizes, StagedTransfer
from muxcluster.kernels.triton_ops.specimens.specimen import Specimen
from tests.amounts import slow

MIXED = [(0, 700), (512, 64), (90, 1)]
STEPS: dict[str, Callable[[LoadedModel], None]] = {
    "decode": decode_rows,
    "decode of many rows": partial(decode_rows, num_rows=256),
    "decode of rows that share prefixes": partial(decode_rows, shares=True),
    "prompts beside decodes": partial(prompt_rows, MIXED),
}


def all_specimens() -> list[Specimen]:
    return [each for module in modules() for each in specimens(module)]


def launched(family: str, fuses: bool) -> set[KernelTypes]:
    recordings = (recorded(family, 1, step, fuses) for step in STEPS.values())
    return set().union(*(each.kernel_types for each in recordings))


@pytest.mark.parametrize("fuses", [True, False], ids=["fused", "stock"])
@pytest.mark.parametrize("family", [*slow("llama"), "qwen3"])
def test_every_launch_of_a_step_has_a_specimen(family: str, fuses: bool) -> None:
    found = launched(family, fuses)
    names = {each.kernel.rpartition(".")[2] for each in found}
    assert names >= {"decode_kernel", "prefix_kernel", "prefill_kernel", "write_kernel", "_sample"}
    missing = found - {types_of(each) for each in all_specimens()}
    assert not missing, "\n".join(f"no specimen of {each}" for each in missing)


def test_every_launch_of_a_copy_has_a_specimen() -> None:
    sizes = SlotSizes(256, 16)
    runs = np.array([[0, 32, 5], [40, 64, 16]])
    with torch.inference_mode(), FakeCuda() as cuda:
        pool = torch.empty(10, 8192, dtype=torch.uint8, device=cuda.device)
        transfer = StagedTransfer(pool, torch.empty(10, 8192, dtype=torch.uint8))
        with cuda.recording() as recording:
            transfer.save(runs, sizes)
            transfer.move(runs, sizes)
            transfer.restore(runs, sizes)
    assert recording.count()["slot_copy_kernel"] == 3
    assert recording.kernel_types <= {types_of(each) for each in all_specimens()}


def test_a_specimen_of_other_types_is_no_specimen() -> None:
    """The comparison sees the type of an index and the divisibility of a stride."""
    (made, *_) = specimens("paged_decode")
    narrow = replace(made, signature={**made.signature, "table_rows": "*i32"})
    odd = replace(made, divisible=made.divisible - {"query_row_stride"})
    assert len({types_of(each) for each in (made, narrow, odd)}) == 3
