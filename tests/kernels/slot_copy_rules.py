"""What every slot_copy must do, against copies byte by byte."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from tests.kernels.slot_copy_cases import check, random_blocks

RUNS = [(3, 0, 1), (37, 1, 5), (95, 6, 1), (48, 7, 8), (0, 15, 2)]
"""Slots of six blocks of 16, and rows of staging."""


class SlotCopyRules:
    """`slot_copy` is the function under test, `num_random` how many random cases it has."""

    slot_copy: Callable[..., None]
    num_random = 20

    @pytest.mark.parametrize("block", [16, 32, 64])
    @pytest.mark.parametrize("itemsize", [2, 4])
    @pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
    def test_gather_then_scatter(self, head_dim, itemsize, block):
        width = head_dim * itemsize
        tokens = 128 * block // head_dim // 8 * 8
        pool = random_blocks(6, 2 * 128 * block * itemsize)
        staging = random_blocks(tokens + 8, 2 * width, seed=1)
        runs = [(1, 4, 3), (tokens, 7, tokens), (5 * tokens + 2, 0, 1)]
        sizes = {"slot_bytes": width, "destination_tokens": 1, "source_tokens": tokens}
        check(self.slot_copy, staging, pool, runs, **sizes)
        back = [(4, 2 * tokens, 3), (7, 3 * tokens + 1, tokens - 1)]
        sizes = {"slot_bytes": width, "destination_tokens": tokens, "source_tokens": 1}
        check(self.slot_copy, pool, staging, back, **sizes)

    @pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
    def test_moves_between_blocks_of_one_pool(self, dtype):
        pool = random_blocks(6, 512)
        runs = [(0, 16, 16), (35, 60, 3), (85, 32, 1)]
        sizes = {"slot_bytes": 16, "destination_tokens": 16, "source_tokens": 16}
        check(self.slot_copy, pool, pool, runs, dtype=dtype, **sizes)

    @pytest.mark.parametrize("width", [1, 3, 6, 12, 24])
    def test_slots_of_any_width(self, width):
        pool, staging = random_blocks(6, 32 * width + 2), random_blocks(20, 2 * width, seed=1)
        sizes = {"slot_bytes": width, "destination_tokens": 1, "source_tokens": 16}
        check(self.slot_copy, staging, pool, RUNS, **sizes)

    def test_blocks_of_other_sizes(self):
        small, large = random_blocks(6, 400), random_blocks(3, 1024, seed=1)
        sizes = {"slot_bytes": 8, "destination_tokens": 64, "source_tokens": 24}
        check(self.slot_copy, large, small, [(20, 60, 30), (100, 0, 5)], **sizes)

    def test_runs_longer_than_a_step_and_across_blocks(self):
        small, large = random_blocks(6, 800), random_blocks(3, 1024, seed=1)
        sizes = {"slot_bytes": 8, "destination_tokens": 32, "source_tokens": 48}
        check(self.slot_copy, large, small, [(20, 7, 70), (100, 0, 5)], **sizes)

    def test_no_runs_and_empty_runs_copy_nothing(self):
        pool, staging = random_blocks(2, 512), random_blocks(4, 32, seed=1)
        before = staging.clone()
        sizes = {"slot_bytes": 16, "destination_tokens": 1, "source_tokens": 16}
        self.slot_copy(staging, pool, torch.empty(0, 3, dtype=torch.int32), **sizes)
        self.slot_copy(staging, pool, torch.tensor([[3, 1, 0], [32, 4, 0]]), **sizes)
        assert torch.equal(staging, before)

    def test_random_runs(self):
        generator = np.random.default_rng(5)
        for seed in range(self.num_random):
            pool, staging = random_blocks(6, 400, seed), random_blocks(96, 24, seed + 50)
            cuts = np.sort(generator.choice(np.arange(1, 96), 9, replace=False))
            bounds = [0, *cuts.tolist(), 96]
            rows = generator.permutation(10)
            runs = [(bounds[i], 96 - bounds[i + 1], bounds[i + 1] - bounds[i]) for i in rows]
            sizes = {"slot_bytes": 12, "destination_tokens": 1, "source_tokens": 16}
            check(self.slot_copy, staging, pool, runs, **sizes)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"source": torch.zeros(4, 512)}, "source must be"),
            ({"source": torch.zeros(512, 4, dtype=torch.uint8).t()}, "source must be"),
            ({"destination": torch.zeros(32, dtype=torch.uint8)}, "destination must be"),
            ({"destination": torch.zeros(4, 30, dtype=torch.uint8)}, "destination's blocks of 30"),
            ({"destination": torch.zeros(4, 33, dtype=torch.uint8)}, "destination's blocks of 33"),
            ({"source_tokens": 17}, "source's blocks of 512"),
            ({"source_tokens": 0}, "source's blocks of 512"),
            ({"slot_bytes": 0}, "slot_bytes"),
            ({"runs": torch.zeros(2, 3)}, "runs"),
            ({"runs": torch.zeros(2, 4, dtype=torch.int32)}, "runs"),
        ],
    )
    def test_wrong_arguments_are_named(self, change, message):
        self.check_refused(change, message)

    def check_refused(self, change, message):
        arguments = {
            "destination": torch.zeros(4, 32, dtype=torch.uint8),
            "source": torch.zeros(4, 512, dtype=torch.uint8),
            "runs": torch.tensor([[0, 0, 4]]),
            "slot_bytes": 16,
            "destination_tokens": 1,
            "source_tokens": 16,
        }
        self.slot_copy(**arguments)
        with pytest.raises(ValueError, match=message):
            self.slot_copy(**(arguments | change))
