"""The best token of a row, against a search written out."""

import pytest
import torch

from muxcluster.engine.sampling.best import best_tokens


@pytest.mark.parametrize("vocab_size", [1, 255, 256, 257, 1000, 32_000])
def test_lowest_id_of_the_largest(vocab_size: int) -> None:
    generator = torch.Generator().manual_seed(vocab_size)
    logits = torch.randn(7, vocab_size, generator=generator)
    logits[1] = torch.randint(0, 3, (vocab_size,), generator=generator).float()  # ties
    logits[2, -1] = 9.0
    logits[3] = -torch.inf
    logits[3, vocab_size // 2] = -1e30
    logits[4] = 0.0
    expected = [row.index(max(row)) for row in logits.tolist()]
    assert best_tokens(logits).tolist() == expected
