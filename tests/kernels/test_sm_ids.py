"""The probe's twin: torch's threads in the place of multiprocessors."""

import pytest
import torch

from muxcluster.kernels.sm_ids import sm_ids


def test_every_thread_is_seen() -> None:
    ids, sums = torch.full((64,), -1, dtype=torch.int32), torch.empty(64)
    sm_ids(ids, sums)
    assert set(ids.tolist()) == set(range(torch.get_num_threads()))


@pytest.mark.parametrize(
    ("ids", "sums", "says"),
    [
        (torch.zeros(4, dtype=torch.int64), torch.zeros(4), "ids must be"),
        (torch.zeros(8, dtype=torch.int32)[::2], torch.zeros(4), "ids must be"),
        (torch.zeros(4, dtype=torch.int32), torch.zeros(5), "sums must be"),
    ],
)
def test_wrong_tensors_are_refused(ids: torch.Tensor, sums: torch.Tensor, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        sm_ids(ids, sums)
