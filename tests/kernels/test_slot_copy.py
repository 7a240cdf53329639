"""The plain-torch slot_copy keeps the rules, and refuses runs that leave a tensor."""

import pytest
import torch

from muxcluster.kernels.attention.paged_decode import paged_decode
from muxcluster.kernels.slot_copy import slot_copy, widest_word
from tests.kernels.paged_cases import filled_case, random_query
from tests.kernels.slot_copy_cases import random_blocks
from tests.kernels.slot_copy_rules import SlotCopyRules


class TestSlotCopy(SlotCopyRules):
    slot_copy = staticmethod(slot_copy)

    @pytest.mark.parametrize(
        ("run", "message"),
        [
            ([60, 0, 5], "leaves the source"),
            ([-1, 0, 1], "leaves the source"),
            ([0, 3, 2], "leaves the destination"),
            ([0, 0, -1], "leaves the source"),
        ],
    )
    def test_runs_that_leave_a_tensor_are_named(self, run, message):
        self.check_refused({"runs": torch.tensor([run])}, message)


@pytest.mark.parametrize("right", [False, True])
def test_a_sequence_restored_into_other_blocks_attends_as_before(right):
    """40 tokens in blocks of 32 go to staging and come back one block later, the places cut anew.

    Staging holds them by place, so a sequence that fills from the right lies there reversed.
    """
    case = filled_case([40, 90], 1, 64, rights=[right, not right], block=16)
    query = random_query(2, 1, case)
    rows = (torch.tensor([0, 1]), torch.tensor([40, 90]), case.from_right)
    options = {"block_tokens": 32, "scale": 0.3}
    before = paged_decode(query, case.pool, case.table, *rows, **options)
    width = 64 * 4
    staging = torch.zeros(40, 2 * width, dtype=torch.uint8)
    first, second = (int(block) * 32 for block in case.table[0, 0, :2])
    runs = [(second + 24, 0, 8), (first, 8, 32)] if right else [(first, 0, 32), (second, 32, 8)]
    gather = {"slot_bytes": width, "destination_tokens": 1, "source_tokens": 32}
    slot_copy(staging, case.pool, torch.tensor(runs), **gather)
    used = set(case.table[0, 0, :2].tolist()) | set(case.table[1, 0, :3].tolist())
    fresh = sorted(set(range(len(case.pool))) - used)[:2]
    case.pool[case.table[0, 0, :2].long()] = 0xFF
    case.table[0, 0, :2] = torch.tensor(fresh)
    first, second = fresh[0] * 32, fresh[1] * 32
    runs = [(0, second + 24, 8), (8, first, 32)] if right else [(0, first, 32), (32, second, 8)]
    # Cut anew: one long run as two.
    source, target, count = max(runs, key=lambda run: run[2])
    runs.remove((source, target, count))
    runs += [(source, target, 11), (source + 11, target + 11, count - 11)]
    scatter = {"slot_bytes": width, "destination_tokens": 32, "source_tokens": 1}
    slot_copy(case.pool, staging, torch.tensor(runs), **scatter)
    assert torch.equal(paged_decode(query, case.pool, case.table, *rows, **options), before)


@pytest.mark.parametrize(
    ("width", "halves", "word"),
    [(256, 4096, torch.int64), (12, 200, torch.int32), (6, 102, torch.int16), (7, 70, torch.uint8)],
)
def test_the_widest_word_that_divides_all(width, halves, word):
    pool, staging = random_blocks(2, 2 * halves), random_blocks(3, 2 * width)
    assert widest_word(staging, pool, width) == word
    assert widest_word(pool, staging, width) == word
