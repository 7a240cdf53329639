"""The Triton slot_copy, interpreted, keeps the rules."""

import torch

from muxcluster.kernels.triton_ops.slot_copy import slot_copy
from tests.kernels.slot_copy_rules import SlotCopyRules


class TestSlotCopy(SlotCopyRules):
    slot_copy = staticmethod(slot_copy)
    num_random = 1

    def test_a_run_whose_numbers_lie_apart_is_refused(self):
        runs = torch.zeros(3, 2, dtype=torch.int32).t()
        self.check_refused({"runs": runs}, "side by side")
