"""A scheduler of thirty lines for tests: chunks of prompts and decodes in the same jobs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import numpy as np

from muxcluster.core.job import (
    Admission,
    Job,
    JobResult,
    Phase,
    Rows,
    Side,
    TableDelta,
    TokenLogprobs,
    WorkerSpec,
)
from muxcluster.core.sampling import SamplingParams
from muxcluster.core.unitspec import ModelSpec, UnitSpec
from muxcluster.engine.steps.device.captures import Capture
from muxcluster.engine.steps.runner import UnitRunner
from tests.blocks import block_tokens
from tests.models import model_spec

GREEDY = SamplingParams(temperature=0.0)
BLOCK_BYTES = 512 * block_tokens(16)
"""8 tokens at head_dim 128 in fp32, 16 at 64."""


def unit_of(*directories: Path, **fields: object) -> UnitSpec:
    """A unit of the models in `directories`, run in this process; `fields` go to `ModelSpec`."""
    options = {"max_seqs": 12, "max_model_len": 192, **fields}
    return UnitSpec(
        unit_id="u",
        models=tuple(model_spec(path, path.name, **options) for path in directories),
        num_blocks=6000,
        block_bytes=BLOCK_BYTES,
        workers=(WorkerSpec(0, (1.0,)),),
        partition="none",
        num_threads=1,
    )


def ragged(vocab_size: int, num_prompts: int = 8, *, seed: int = 0) -> list[list[int]]:
    """Random prompts of 1 to 75 tokens; the first has 1."""
    rng = np.random.default_rng(seed)
    lengths = [1, *rng.integers(2, 76, num_prompts - 1)]
    return [rng.integers(0, vocab_size, length).tolist() for length in lengths]


@dataclass(slots=True)
class Running:
    """A running sequence: its tokens so far, how many are computed, and the columns it has."""

    row: int
    tokens: list[int]
    num_prompt: int
    num_computed: int = 0
    num_columns: int = 0
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)

    @property
    def output(self) -> list[int]:
        return self.tokens[self.num_prompt :]


class Driver:
    """Runs sequences of one model; `blocks` numbers the pool's blocks for all models of it."""

    def __init__(self, runner: UnitRunner, spec: ModelSpec, blocks: Iterator[int]) -> None:
        self.spec = spec
        self.runner = runner
        self._blocks = blocks
        self._rows = count()
        self._admissions: list[Admission] = []
        self.deltas: list[tuple[int, int, list[int]]] = []
        self.num_sent = 0

    def admit(
        self,
        prompt: Sequence[int],
        sampling: SamplingParams = GREEDY,
        side: Side = Side.LEFT,
        row: int | None = None,
        adapter: str = "",
    ) -> Running:
        row = next(self._rows) if row is None else row
        tokens = np.asarray(prompt, dtype=np.int32)
        self._admissions.append(
            Admission(row, str(row), tokens, len(tokens), sampling, side, adapter)
        )
        return Running(row, list(prompt), len(prompt))

    def step(self, sequences: Sequence[Running], chunk: int, max_steps: int = 1) -> JobResult:
        """One job: at most `chunk` tokens of each sequence that still has some to compute."""
        counts = [min(chunk, len(s.tokens) - s.num_computed) for s in sequences]
        samples = [
            s.num_computed + n == len(s.tokens) for s, n in zip(sequences, counts, strict=True)
        ]
        for s, n in zip(sequences, counts, strict=True):
            self.grow(s, s.num_computed + n + max_steps - 1)
        rows = Rows(
            table_rows=np.array([s.row for s in sequences], dtype=np.int32),
            starts=np.array([s.num_computed for s in sequences], dtype=np.int32),
            counts=np.array(counts, dtype=np.int32),
            samples=np.array(samples, dtype=np.bool_),
        )
        admissions, self._admissions = tuple(self._admissions), []
        job = Job(
            7, self.spec.name, Phase.MIXED, 0, 1.0, rows, self._delta(), admissions, max_steps
        )
        result = self.runner.execute(job)
        while self.runner.record_next():  # as a worker does that has nothing else to do
            pass
        self._take(sequences, rows, result)
        return result

    def run(
        self,
        prompts: Sequence[Sequence[int]],
        num_tokens: int,
        *,
        chunk: int = 13,
        side: Side = Side.LEFT,
        sampling: SamplingParams = GREEDY,
    ) -> list[Running]:
        """All prompts to `num_tokens` outputs; two are admitted a step, so that jobs are mixed."""
        waiting = list(prompts)
        everyone: list[Running] = []
        while waiting or any(len(s.output) < num_tokens for s in everyone):
            fresh, waiting = waiting[:2], waiting[2:]
            everyone += [self.admit(prompt, sampling, side) for prompt in fresh]
            self.step([s for s in everyone if len(s.output) < num_tokens], chunk)
        return everyone

    def decode_job(self, sequences: Sequence[Running], ahead: int, max_steps: int) -> Job:
        """Steps of sequences that have computed `ahead` tokens more than is known here."""
        numbers = [(s.row, s.num_computed + ahead, 1) for s in sequences]
        table_rows, starts, counts = np.array(numbers, dtype=np.int32).T
        rows = Rows(table_rows, starts, counts, np.ones(len(table_rows), dtype=np.bool_))
        return Job(8, self.spec.name, Phase.DECODE, 0, 1.0, rows, self._delta(), (), max_steps)

    def grow(self, sequence: Running, num_tokens: int) -> None:
        width = self.spec.shape.block_tokens(BLOCK_BYTES)
        while sequence.num_columns * width < num_tokens:
            blocks = [next(self._blocks) for _ in range(self.spec.shape.blocks_per_column)]
            self.deltas.append((sequence.row, sequence.num_columns, blocks))
            sequence.num_columns += 1

    def _delta(self) -> TableDelta:
        new, self.num_sent = self.deltas[self.num_sent :], len(self.deltas)
        return TableDelta(
            rows=np.array([row for row, _, _ in new], dtype=np.int32),
            columns=np.array([column for _, column, _ in new], dtype=np.int32),
            blocks=np.array([blocks for _, _, blocks in new], dtype=np.int32).reshape(
                len(new), self.spec.shape.blocks_per_column
            ),
        )

    def _take(self, sequences: Sequence[Running], rows: Rows, result: JobResult) -> None:
        tokens = iter(result.tokens.tolist())
        for row, (s, num_new) in enumerate(zip(sequences, result.counts.tolist(), strict=True)):
            s.num_computed += int(rows.counts[row]) + max(0, num_new - 1)
            s.tokens += [next(tokens) for _ in range(num_new)]
            s.logprobs += result.logprobs.get(row, ())
            s.prompt_logprobs += result.prompt_logprobs.get(row, ())
        assert next(tokens, None) is None


def drivers(unit: UnitSpec, capture: Capture | None = None) -> list[Driver]:
    """A driver for each model of the unit, over one pool; capture: as of `UnitRunner`."""
    runner = UnitRunner(unit, capture=capture)
    blocks = iter(np.random.default_rng(1).permutation(unit.num_blocks).tolist())
    return [Driver(runner, model, blocks) for model in unit.models]
