"""Decode steps of two ranks are recorded with their collectives in them, and meet when replayed.

The tape stands for a CUDA graph: on a replay no Python of the step runs but its collectives, which
are operators of the tape as NCCL's kernels are of a graph.
"""

from dataclasses import replace

import numpy as np
import pytest
from torch import Tensor

from muxcluster.engine.load.division.group import RankGroup
from muxcluster.engine.steps.runner import UnitRunner
from tests.amounts import slow
from tests.engine.driver import Driver, unit_of
from tests.engine.parallel.conftest import ModelBuilder
from tests.engine.parallel.ranks import on_ranks, over_ranks
from tests.engine.steps.test_decode_graphs import DRAWN, check, grow_and_shrink
from tests.engine.tape import TapeCapture

pytestmark = pytest.mark.usefixtures("torch_only")


class TapedGroup:
    """Collectives are single operators of the tape."""

    def __init__(self, group: RankGroup, tape: TapeCapture) -> None:
        self.rank, self.size = group.rank, group.size
        self._all_reduce = tape.as_one(group.all_reduce)
        self._gather = tape.as_one(group.gather)

    def all_reduce(self, partial: Tensor) -> Tensor:
        summed: Tensor = self._all_reduce(partial)
        return summed

    def gather(self, part: Tensor) -> Tensor:
        whole: Tensor = self._gather(part)
        return whole


@pytest.mark.parametrize(
    ("name", "family", "fields"),
    [
        *slow(("llama", "llama", {}), ("qwen2-tied", "qwen2", {})),
        ("llama-ragged", "llama", {"vocab_size": 515, "tie_word_embeddings": True}),
    ],
)
def test_replayed_steps_yield_hugging_faces_tokens(
    tiny: ModelBuilder, monkeypatch: pytest.MonkeyPatch, name: str, family: str, fields: dict
) -> None:
    directory = tiny(name, family, **fields)
    tape = TapeCapture(monkeypatch)
    unit = over_ranks(replace(unit_of(directory), num_blocks=6000))
    (model,) = unit.models

    def work(group: RankGroup) -> tuple[list, list]:
        runner = UnitRunner(unit, capture=tape, group=TapedGroup(group, tape))
        blocks = iter(np.random.default_rng(1).permutation(unit.num_blocks).tolist())
        greedy = grow_and_shrink(Driver(runner, model, blocks))
        drawn = grow_and_shrink(Driver(runner, model, blocks), DRAWN)
        return greedy, drawn

    (greedy, drawn), others = on_ranks(2, work)
    check(directory, greedy)
    for mine, theirs in zip((greedy, drawn), others, strict=True):
        assert [s.tokens for s in mine] == [s.tokens for s in theirs]
    assert tape.replays > 50
