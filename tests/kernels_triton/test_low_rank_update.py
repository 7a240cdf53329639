"""The Triton low_rank_update, interpreted, against float64."""

import pytest
import torch

from muxcluster.kernels.triton_ops.low_rank_update import low_rank_update
from tests.kernels.low_rank_cases import assert_updated, case_of
from tests.kernels.row_cases import assert_surroundings_untouched


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("num_in", "num_out"), [(1, 1), (127, 128), (128, 127), (129, 257)])
def test_against_float64(num_in: int, num_out: int, dtype: torch.dtype) -> None:
    """Adapters without rows, of one, of a tile's, and of one more; tiles that are full or not."""
    ranks = [1, 16, 0, 17, 33]
    adapters = [3, -1, 0, *[1] * 17, 2, 4, *[3] * 15, -1, 4]
    case = case_of(adapters, ranks, dtype, num_in=num_in, num_out=num_out)
    low_rank_update(*case.arguments)
    assert_updated(case)
    assert_surroundings_untouched(case.outputs)


def test_nothing_to_do() -> None:
    case = case_of([-1, -1], [3], torch.float32)
    before = case.outputs.clone()
    low_rank_update(*case.arguments)
    assert torch.equal(case.outputs, before)


def test_refused() -> None:
    case = case_of([0], [3], torch.float32)
    with pytest.raises(ValueError, match="numbers of ranks"):
        low_rank_update(*case.arguments[:2], case.down[1:], *case.arguments[3:])
