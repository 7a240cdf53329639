"""Jobs made by hand for a real executor: one sequence a job, its blocks named by the test."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from muxcluster.core.job import (
    Admission,
    Job,
    Phase,
    Rows,
    Side,
    SlotCopies,
    TableDelta,
    TokenLogprobs,
)
from muxcluster.core.sampling import SamplingParams
from muxcluster.core.unitspec import ModelSpec, UnitSpec
from muxcluster.engine.executor import Executor, JobDone, JobFailed, Outcome, StillRunning

SAMPLING = SamplingParams(temperature=0.0, ignore_eos=True, logprobs=0)
Columns = dict[int, list[int]]
"""Column -> its blocks, layer-major."""


@dataclass(slots=True)
class Held:
    """A sequence, its blocks, and what it put out: exact tokens and log-probabilities."""

    model: ModelSpec
    row: int
    side: Side
    prompt: list[int]
    columns: Columns
    num_computed: int = 0
    unsent: set[int] = field(default_factory=set)
    output: list[TokenLogprobs] = field(default_factory=list)

    @property
    def tokens(self) -> list[int]:
        return [each.token for each in self.output]


class ManualJobs:
    """Runs one job at a time on `executor`, which has started."""

    def __init__(self, executor: Executor, spec: UnitSpec) -> None:
        self._executor = executor
        self._block_bytes = spec.block_bytes
        self._next_job = 1
        self._rows = dict.fromkeys((model.name for model in spec.models), 0)

    def sequence(
        self, model: ModelSpec, side: Side, prompt: list[int], blocks: Sequence[int]
    ) -> Held:
        """A new sequence that holds `blocks`, whole columns of them."""
        width = model.shape.blocks_per_column
        row = self._rows[model.name]
        self._rows[model.name] += 1
        columns = {
            i: list(blocks[i * width : (i + 1) * width]) for i in range(len(blocks) // width)
        }
        return Held(model, row, side, prompt, columns, unsent=set(columns))

    def block_tokens(self, model: ModelSpec) -> int:
        return model.shape.block_tokens(self._block_bytes)

    def prefill(self, held: Held, worker_id: int = 0, copies: tuple[SlotCopies, ...] = ()) -> None:
        """The whole prompt; yields the first output token."""
        tokens = np.array(held.prompt, dtype=np.int32)
        admission = Admission(
            held.row, f"r{held.row}", tokens, len(tokens), SAMPLING, side=held.side
        )
        self._run(held, len(tokens), 1, worker_id, copies, (admission,))

    def decode(
        self, held: Held, steps: int, worker_id: int = 0, copies: tuple[SlotCopies, ...] = ()
    ) -> None:
        """`steps` more output tokens in one job."""
        self._run(held, 1, steps, worker_id, copies, ())

    def fail(self, held: Held, copies: tuple[SlotCopies, ...], worker_id: int = 0) -> None:
        """A job that makes its copies and then raises: it names a column that no table has."""
        job = self._job(held, 1, 1, worker_id, copies, ())
        column = np.array([10_000], dtype=np.int32)
        blocks = np.array([held.columns[0]], dtype=np.int32)
        tables = TableDelta(np.array([held.row], dtype=np.int32), column, blocks)
        self._executor.launch(replace(job, tables=tables))
        outcome = self._outcome()
        assert isinstance(outcome, JobFailed), outcome
        assert "IndexError" in outcome.message

    def _run(
        self,
        held: Held,
        count: int,
        steps: int,
        worker_id: int,
        copies: tuple[SlotCopies, ...],
        admissions: tuple[Admission, ...],
    ) -> None:
        self._executor.launch(self._job(held, count, steps, worker_id, copies, admissions))
        held.unsent.clear()
        held.num_computed += count + steps - 1
        needed = -(-held.num_computed // self.block_tokens(held.model))
        assert needed <= len(held.columns), "the test gave it too few blocks"
        outcome = self._outcome()
        assert isinstance(outcome, JobDone), outcome
        held.output += outcome.result.logprobs[0]

    def _job(
        self,
        held: Held,
        count: int,
        steps: int,
        worker_id: int,
        copies: tuple[SlotCopies, ...],
        admissions: tuple[Admission, ...],
    ) -> Job:
        self._next_job += 1
        return Job(
            job_id=self._next_job - 1,
            model=held.model.name,
            phase=Phase.PREFILL if admissions else Phase.DECODE,
            worker_id=worker_id,
            share=0.5,
            rows=Rows(
                table_rows=np.array([held.row], dtype=np.int32),
                starts=np.array([held.num_computed], dtype=np.int32),
                counts=np.array([count], dtype=np.int32),
                samples=np.array([True]),
            ),
            tables=_delta(held),
            admissions=admissions,
            max_steps=steps,
            copies=copies,
        )

    def _outcome(self) -> Outcome:
        while True:
            for outcome in self._executor.wait(5):
                if not isinstance(outcome, StillRunning):
                    return outcome


def _delta(held: Held) -> TableDelta:
    columns = sorted(held.unsent)
    return TableDelta(
        rows=np.full(len(columns), held.row, dtype=np.int32),
        columns=np.array(columns, dtype=np.int32),
        blocks=np.array([held.columns[c] for c in columns], dtype=np.int32).reshape(
            len(columns), held.model.shape.blocks_per_column
        ),
    )
