"""Where the C++ kernels can be had, attention on CPUs uses them; other pools are torch's."""

import pytest
import torch

from muxcluster.kernels.cpu.decode_plans import decode_plan
from muxcluster.kernels.kv_write import write_plan
from muxcluster.kernels.native.attention import NativeDecode, NativeWrite
from tests.kernels.native.switch import has_native


@pytest.mark.parametrize(
    ("dtype", "is_native"),
    [
        (torch.float32, True),
        (torch.bfloat16, True),
        (torch.float16, False),
        (torch.int8, True),
        (torch.uint8, True),
    ],
)
def test_by_type_of_keys_and_values(dtype: torch.dtype, is_native: bool) -> None:
    if not has_native():
        pytest.skip("no C++ compiler here")
    halves = torch.zeros((8, 4 * 16), dtype=dtype)
    tables, right = torch.zeros((1, 1, 1, 2), dtype=torch.int32), torch.tensor([False])
    rows, lengths = torch.tensor([0]), torch.tensor([3])
    query = torch.zeros((1, 1, 1, 16), dtype=torch.float32)
    plan = decode_plan(query, halves, tables, rows, lengths, right, block_tokens=4)
    write = write_plan(halves, tables, rows, lengths, right, 4)
    assert isinstance(plan, NativeDecode) == is_native
    assert isinstance(write, NativeWrite) == is_native


def test_keys_of_another_type_than_the_pool_are_refused() -> None:
    if not has_native():
        pytest.skip("no C++ compiler here")
    halves = torch.zeros((8, 4 * 16))
    tables = torch.zeros((1, 1, 1, 2), dtype=torch.int32)
    write = NativeWrite(tables, torch.tensor([0]), torch.tensor([0]), torch.tensor([False]), 4)
    key = torch.zeros((1, 1, 16))
    with pytest.raises(ValueError, match="in a pool of"):
        write.write(key, key.bfloat16(), halves, 0)
    with pytest.raises(ValueError, match="2 keys for 1 positions"):
        write.write(key.repeat(2, 1, 1), key.repeat(2, 1, 1), halves, 0)
