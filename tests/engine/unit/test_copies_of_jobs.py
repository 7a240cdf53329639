"""Slots saved, overwritten by another model from the left and restored: nobody's output changes."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from muxcluster.core.job import Side, SlotCopies, WorkerSpec
from muxcluster.core.unitspec import ModelSpec, UnitSpec
from muxcluster.demo.models import build_model
from muxcluster.engine.executor import Executor
from muxcluster.engine.unit.executor_choice import make_executor
from tests.blocks import block_tokens, only_with, scaled
from tests.engine.manual_jobs import Held, ManualJobs
from tests.models import model_spec

pytestmark = pytest.mark.usefixtures("fast_children")

BLOCK_BYTES = 2 * block_tokens(8) * 128 * 4
"""8 tokens of the wide model, 16 of the narrow one, both fp32."""
NUM_BLOCKS, NUM_HOST_BLOCKS = 600, 100
UNUSED_SLOT = (NUM_HOST_BLOCKS - 1) * block_tokens(8)
"""A slot of host memory that nobody writes, whichever model counts."""
NUM_PROMPT = scaled(38, 8) - 4
"""With the 4 tokens before blocks are taken, the last block of either model is filled in part."""
LEFT_PROMPT = scaled(3, 8)
NUM_TOKENS = 8
"""Output tokens after the restore."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ModelSpec]:
    """Columns of 6 and of 8 blocks, slots of 256 and of 512 bytes; "rounded" has some of 132."""
    root = tmp_path_factory.mktemp("models")
    narrow = build_model(root / "narrow", "llama", seed=1)
    wide = build_model(root / "wide", "opt", seed=2, head_dim=128)
    plain = {path.name: _spec(path, path.name) for path in (narrow, wide)}
    return {**plain, "rounded": _spec(wide, "rounded", kv_dtype="int8")}


def _spec(path: Path, name: str, kv_dtype: str = "auto") -> ModelSpec:
    options = {"max_seqs": 64, "max_model_len": scaled(256, 8), "kv_dtype": kv_dtype}
    return model_spec(path, name, **options)


@pytest.fixture(scope="module", params=["none", "threads"])
def manual(request: pytest.FixtureRequest, models: dict[str, ModelSpec]) -> Iterator[ManualJobs]:
    """In this process, and with two child processes: what one saves the other restores."""
    spec = UnitSpec(
        unit_id="unit-0",
        models=tuple(models.values()),
        num_blocks=NUM_BLOCKS,
        block_bytes=BLOCK_BYTES,
        workers=tuple(WorkerSpec(worker_id, (0.5,)) for worker_id in (0, 1)),
        partition=request.param,
        num_threads=1,
        num_host_blocks=NUM_HOST_BLOCKS,
    )
    executor: Executor = make_executor(spec)
    executor.start()
    yield ManualJobs(executor, spec)
    executor.close()


class Sharing:
    """A right-side sequence of `right` whose tail blocks a left-side one of `left` takes.

    What the KV cache will decide, done block by block; one watermark a block, as there.
    """

    def __init__(self, manual: ManualJobs, right: ModelSpec, left: ModelSpec, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self._manual = manual
        self._ids = iter(rng.permutation(NUM_BLOCKS).tolist())
        self._frame_ids = count()
        self._frames: dict[int, int] = {}
        self._num_saved: dict[int, int] = {}
        self._right_tokens = manual.block_tokens(right)
        prompt = rng.integers(3, right.vocab_size, NUM_PROMPT).tolist()
        columns = -(-(NUM_PROMPT + 4 + NUM_TOKENS) // self._right_tokens)
        self.undisturbed, self.batch = (
            manual.sequence(right, Side.RIGHT, prompt, self._blocks(right, columns))
            for _ in range(2)
        )
        self._left = left
        self._left_prompt = rng.integers(3, left.vocab_size, LEFT_PROMPT).tolist()

    def _blocks(self, model: ModelSpec, columns: int) -> list[int]:
        return [next(self._ids) for _ in range(columns * model.shape.blocks_per_column)]

    def start(self) -> None:
        """Both right sequences the same way: prompt on worker 0, 4 tokens on worker 1."""
        for held in (self.undisturbed, self.batch):
            self._manual.prefill(held, 0)
            self._manual.decode(held, 4, 1)
        assert self.undisturbed.output == self.batch.output

    def take(self) -> list[Held]:
        """The left sequence in blocks of the right one, deepest first, and its twin elsewhere."""
        used = -(-self.batch.num_computed // self._right_tokens)
        lent = [b for c in range(used - 1, -1, -1) for b in self.batch.columns[c]]
        width = self._left.shape.blocks_per_column
        taken = lent[: min(len(lent) // width, 2) * width]
        return [
            self._manual.sequence(self._left, Side.LEFT, self._left_prompt, blocks)
            for blocks in (taken, self._blocks(self._left, len(taken) // width))
        ]

    def saves(self, left: Held, end: int) -> SlotCopies:
        """What the left sequence overwrites by its tokens below `end` and is not saved yet."""
        runs = []
        for column, blocks in left.columns.items():
            mine = end - column * self._manual.block_tokens(left.model)
            for block in blocks:
                written = self._overwritten(mine, left.model)
                first = max(self._num_saved.get(block, 0), self._first_filled(block))
                if written > first:
                    frame = self._frames.setdefault(block, next(self._frame_ids))
                    runs.append(
                        (self._slot(block, first), self._slot(frame, first), written - first)
                    )
                self._num_saved[block] = max(self._num_saved.get(block, 0), written)
        return self._copies(saves=runs)

    def restores(self, *, are_fresh: bool) -> SlotCopies:
        """In place, or into fresh blocks: saved places from the frames, the others moved."""
        moves, restores = [], []
        for column, blocks in self.batch.columns.items():
            for i, block in enumerate(blocks):
                if (saved := self._num_saved.get(block, 0)) == 0:
                    continue
                target = next(self._ids) if are_fresh else block
                first = self._first_filled(block)
                if saved > first:
                    source = self._slot(self._frames[block], first)
                    restores.append((source, self._slot(target, first), saved - first))
                rest = max(first, saved)
                if are_fresh and rest < self._right_tokens:
                    old, new = self._slot(block, rest), self._slot(target, rest)
                    moves.append((old, new, self._right_tokens - rest))
                blocks[i] = target
                self.batch.unsent.add(column)
        assert restores
        # a column of the wide model covers one of the same heads in 8 bits whole
        assert bool(moves) or not are_fresh or self.batch.model.name == "rounded"
        return self._copies(moves=moves, restores=restores)

    def _overwritten(self, num_tokens: int, left: ModelSpec) -> int:
        """Places of the right model's that so many tokens of `left` in one block touch."""
        tokens = min(max(num_tokens, 0), self._manual.block_tokens(left))
        num_bytes = tokens * left.shape.slot_bytes
        shape = self.batch.model.shape
        # the last places of a block may leave some bytes at its end
        return min(-(-num_bytes // shape.slot_bytes), self._right_tokens)

    def _first_filled(self, block: int) -> int:
        """The lowest place that holds a token of the right sequence in this block."""
        (column,) = (c for c, blocks in self.batch.columns.items() if block in blocks)
        tokens = self.batch.num_computed - column * self._right_tokens
        return self._right_tokens - min(max(tokens, 0), self._right_tokens)

    def _slot(self, block: int, place: int) -> int:
        return block * self._right_tokens + place

    def _copies(self, **runs: Sequence[tuple[int, int, int]]) -> SlotCopies:
        arrays = {
            name: np.array(runs.get(name, ()), dtype=np.int64).reshape(-1, 3)
            for name in ("saves", "moves", "restores")
        }
        return SlotCopies(self.batch.model.name, **arrays)


def run_left(manual: ManualJobs, sharing: Sharing) -> tuple[Held, Held]:
    """The left sequence's jobs, each saving what is first overwritten by it; and its twin's."""
    left, twin = sharing.take()
    manual.prefill(twin, 1)
    first, rest = scaled(2, 8), scaled(6, 8)
    manual.decode(twin, first + rest, 0)
    manual.prefill(left, 1, (sharing.saves(left, LEFT_PROMPT),))
    manual.decode(left, first, 0, (sharing.saves(left, LEFT_PROMPT + first),))
    manual.decode(left, rest, 1, (sharing.saves(left, LEFT_PROMPT + first + rest),))
    assert left.output == twin.output
    return left, twin


PAIRS = [("narrow", "wide"), ("wide", "narrow"), ("wide", "wide"), ("rounded", "wide")]


@pytest.mark.parametrize(("right", "left"), [*PAIRS, ("wide", "rounded")])
@pytest.mark.parametrize("are_fresh", [True, False], ids=["fresh", "in place"])
def test_nobody_notices(
    manual: ManualJobs, models: dict[str, ModelSpec], right: str, left: str, are_fresh: bool
) -> None:
    """Tokens and log-probabilities are those of twins in blocks of their own, bit for bit."""
    sharing = Sharing(manual, models[right], models[left], seed=len(right + left))
    sharing.start()
    interactive, twin = run_left(manual, sharing)
    manual.decode(sharing.undisturbed, NUM_TOKENS, 0)
    restores = sharing.restores(are_fresh=are_fresh)
    manual.decode(sharing.batch, NUM_TOKENS, 0, (restores,))
    assert sharing.batch.output == sharing.undisturbed.output
    if are_fresh:  # both go on, in blocks of their own now
        for held in (interactive, twin):
            manual.decode(held, 1, 1)
        assert interactive.output == twin.output


@pytest.mark.parametrize(("right", "left"), PAIRS)
def test_a_restore_whose_job_failed_can_be_repeated(
    manual: ManualJobs, models: dict[str, ModelSpec], right: str, left: str
) -> None:
    """On another worker, into the same blocks: frames and old blocks are as they were."""
    sharing = Sharing(manual, models[right], models[left], seed=len(right + left))
    sharing.start()
    run_left(manual, sharing)
    manual.decode(sharing.undisturbed, NUM_TOKENS, 0)
    restores = sharing.restores(are_fresh=True)
    manual.fail(sharing.batch, (restores,), 1)
    manual.decode(sharing.batch, NUM_TOKENS, 0, (restores,))
    assert sharing.batch.output == sharing.undisturbed.output


def without_copies(copies: SlotCopies, run: int) -> SlotCopies:
    return replace(copies, moves=copies.moves[:0], restores=copies.restores[:0])


def with_a_wrong_slot(copies: SlotCopies, run: int) -> SlotCopies:
    """One slot, the first of a restored run, comes from a frame that was never written."""
    runs = copies.restores.tolist()
    source, target, length = runs[run]
    runs[run : run + 1] = [(UNUSED_SLOT, target, 1), (source + 1, target + 1, length - 1)]
    return replace(copies, restores=np.array(runs))


@only_with(8)
@pytest.mark.parametrize("spoil", [without_copies, with_a_wrong_slot])
@pytest.mark.parametrize(
    ("right", "left", "run"), [("narrow", "wide", 3), ("wide", "narrow", 2), ("wide", "wide", 6)]
)
def test_a_wrong_slot_shows(
    manual: ManualJobs,
    models: dict[str, ModelSpec],
    right: str,
    left: str,
    run: int,
    spoil: Callable[[SlotCopies, int], SlotCopies],
) -> None:
    """run: one to whose first slot a head attends; the log-probabilities show nearly all others."""
    sharing = Sharing(manual, models[right], models[left], seed=len(right + left))
    sharing.start()
    run_left(manual, sharing)
    manual.decode(sharing.undisturbed, NUM_TOKENS, 0)
    spoilt = spoil(sharing.restores(are_fresh=True), run)
    manual.decode(sharing.batch, NUM_TOKENS, 0, (spoilt,))
    assert sharing.batch.tokens != sharing.undisturbed.tokens
