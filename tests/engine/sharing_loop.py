"""A small scheduler over the real KV cache: batch sequences lend, jobs overlap, some fail."""

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from muxcluster.core.job import Admission, Job, Phase, Rows, Side, SlotCopies, TableDelta
from muxcluster.core.sampling import SamplingParams
from muxcluster.core.unitspec import ModelSpec, UnitSpec
from muxcluster.engine.executor import Executor, JobDone, JobFailed
from muxcluster.kvcache.cache import KvCache
from muxcluster.kvcache.model import KvModel
from muxcluster.kvcache.pool import Shortage

SAMPLING = SamplingParams(temperature=0.0, ignore_eos=True)
MOST_LEFT = 4
"""Interactive sequences of a model that run at a time."""
HEAD_START = 70
"""Jobs before the first of them comes: batch sequences hold most of the pool by then."""


@dataclass(slots=True)
class Text:
    """A request. is_new: its worker-side state must be sent whole with its next job."""

    model: ModelSpec
    row: int
    side: Side
    prompt: list[int]
    num_tokens: int
    tokens: list[int]
    num_computed: int = 0
    is_new: bool = True
    is_busy: bool = False
    is_done: bool = False

    @property
    def output(self) -> list[int]:
        return self.tokens[len(self.prompt) :]


@dataclass(slots=True)
class Draft:
    """A job in the making."""

    job_id: int
    model: ModelSpec
    rows: list[Text] = field(default_factory=list)
    tables: list[TableDelta] = field(default_factory=list)
    copies: list[SlotCopies] = field(default_factory=list)


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int32)


class SharingLoop:
    """Runs texts to their end on `executor`, which has started; every choice is drawn."""

    def __init__(
        self,
        executor: Executor,
        spec: UnitSpec,
        seed: int,
        *,
        failures: float = 0.0,
        on_launch: Callable[[Job], None] = lambda job: None,
    ) -> None:
        """failures: share of jobs that raise after their copies. on_launch: told of every job."""
        self._executor, self._spec = executor, spec
        self._failures, self._on_launch = failures, on_launch
        self._draw = random.Random(seed)
        self.num_failed = self.num_spoiled = self.num_preempted = 0
        self.num_saved = self.num_restored = 0
        self._running: dict[int, Draft] = {}
        self._workers: dict[int, int] = {}
        self._next_job = 1
        self.cache = KvCache(
            spec.num_blocks,
            spec.block_bytes,
            [KvModel(m.name, m.shape, m.max_seqs, m.max_model_len, False) for m in spec.models],
            {},
            num_host_blocks=spec.num_host_blocks,
            is_bidirectional=True,
        )

    def run(self, texts: Sequence[Text]) -> None:
        self._texts = list(texts)
        for text in texts:
            self.cache.of(text.model.name).open(text.row, [], text.side)
        while not all(text.is_done for text in texts):
            idle = [w.worker_id for w in self._spec.workers if w.worker_id not in self._workers]
            for worker_id in idle:
                self._launch(worker_id)
            if not self._running:
                self._preempt()
                continue
            for outcome in self._executor.wait(5):
                if isinstance(outcome, JobDone):
                    self._done(outcome)
                elif isinstance(outcome, JobFailed):
                    self._failed(outcome)
            self.cache.check()

    def _preempt(self) -> None:
        """Nothing runs and nothing can: one sequence gives up all it has, a batch one if any."""
        holds = [t for s in (Side.RIGHT, Side.LEFT) for t in self._idle(s) if t.num_computed]
        self._start_again(holds[0])
        self.num_preempted += 1

    def _start_again(self, text: Text) -> None:
        self.cache.of(text.model.name).close(text.row)
        self.cache.of(text.model.name).open(text.row, [], text.side)
        text.num_computed, text.is_new = 0, True

    def _idle(self, side: Side, model: ModelSpec | None = None) -> list[Text]:
        found = [
            text
            for text in self._texts
            if text.side is side and not text.is_busy and not text.is_done
        ]
        if model is not None:
            found = [text for text in found if text.model is model]
        self._draw.shuffle(found)
        return found

    def _is_lent(self, text: Text) -> bool:
        return bool(self.cache.of(text.model.name).num_lent[text.row])

    def _launch(self, worker_id: int) -> None:
        for model in self._draw.sample(self._spec.models, len(self._spec.models)):
            draft = Draft(self._next_job, model)
            self._restore(draft)
            self._choose(draft, self._current(model))
            self._save(draft)
            whole = [text for text in self._idle(Side.RIGHT, model) if not self._is_lent(text)]
            self._choose(draft, whole[:3])
            if draft.rows:
                self._next_job += 1
                self._send(draft, worker_id)
                return

    def _current(self, model: ModelSpec) -> list[Text]:
        """The first lefts that are not done and may run now."""
        if self._next_job <= HEAD_START:
            return []
        first = [t for t in self._texts if t.side is Side.LEFT and t.model is model]
        first = [text for text in first if not text.is_done][:MOST_LEFT]
        blocked = self.cache.of(model.name).lending.blocked()
        return [t for t in first if not t.is_busy and (blocked is None or not blocked[t.row])]

    def _restore(self, draft: Draft) -> None:
        name = draft.model.name
        for text in self._idle(Side.RIGHT, draft.model)[:2]:
            if not self._is_lent(text) or not self.cache.of(name).lending.can_restore(text.row):
                continue
            needed = self.cache.of(name).lending.restore_cost(text.row)
            needed += self.cache.of(name).lack(ints(text.row), ints(len(text.tokens)))
            if needed > self.cache.of(name).headroom(Side.RIGHT):
                continue
            restored = self.cache.of(name).lending.restore(ints(text.row), draft.job_id)
            assert not isinstance(restored, Shortage)
            draft.tables.append(restored[0])
            draft.copies.append(restored[1])
            self._choose(draft, [text])
            assert text in draft.rows

    def _choose(self, draft: Draft, texts: Iterable[Text]) -> None:
        """Rows for those that find room for all their tokens."""
        for text in texts:
            grown = self._grow(text)
            if grown is not None:
                draft.tables.append(grown)
                draft.rows.append(text)
                text.is_busy = True

    def _grow(self, text: Text) -> TableDelta | None:
        name, rows, ends = text.model.name, ints(text.row), ints(len(text.tokens))
        grown = self.cache.of(name).grow(rows, ends)
        if isinstance(grown, Shortage) and text.side is Side.LEFT:
            missing = grown.blocks
            for victim in self._idle(Side.RIGHT):
                if missing > 0:
                    victim_name = victim.model.name
                    missing -= self.cache.of(victim_name).lending.lend(
                        victim.row, victim.num_computed, missing
                    )
            grown = self.cache.of(name).grow(rows, ends)
        return None if isinstance(grown, Shortage) else grown

    def _save(self, draft: Draft) -> None:
        lefts = [text for text in draft.rows if text.side is Side.LEFT]
        rows = ints(*(text.row for text in lefts))
        ends = ints(*(len(text.tokens) for text in lefts))
        draft.copies.extend(self.cache.of(draft.model.name).lending.saves(rows, ends, draft.job_id))

    def _send(self, draft: Draft, worker_id: int) -> None:
        new = [text for text in draft.rows if text.is_new]
        rows = ints(*(text.row for text in new))
        tables = [*draft.tables, self.cache.of(draft.model.name).tables(rows)]
        if self._draw.random() < self._failures:
            width = draft.model.shape.blocks_per_column
            tables.append(TableDelta(ints(0), ints(10_000), np.zeros((1, width), dtype=np.int32)))
        starts = [text.num_computed for text in draft.rows]
        ends = [len(text.tokens) for text in draft.rows]
        job = Job(
            draft.job_id,
            draft.model.name,
            Phase.MIXED,
            worker_id,
            self._spec.workers[worker_id].shares[0],
            Rows(
                ints(*(text.row for text in draft.rows)),
                ints(*starts),
                np.subtract(ends, starts).astype(np.int32),
                np.ones(len(draft.rows), dtype=np.bool_),
            ),
            TableDelta(
                *(
                    np.concatenate([getattr(delta, name) for delta in tables])
                    for name in ("rows", "columns", "blocks")
                )
            ),
            tuple(
                Admission(t.row, str(t.row), ints(*t.tokens), len(t.prompt), SAMPLING, t.side)
                for t in new
            ),
            copies=tuple(draft.copies),
        )
        self._running[draft.job_id], self._workers[worker_id] = draft, draft.job_id
        self.num_saved += sum(int(each.saves[:, 2].sum()) for each in job.copies)
        self.num_restored += sum(int(each.restores[:, 2].sum()) for each in job.copies)
        self._executor.launch(job)
        self._on_launch(job)

    def _end(self, job_id: int, *, succeeded: bool) -> Draft:
        self._workers = {w: job for w, job in self._workers.items() if job != job_id}
        draft = self._running.pop(job_id)
        spoiled = self.cache.end_copies(job_id, succeeded)
        for text in draft.rows:
            text.is_busy = False
            text.is_new = not succeeded
        for text in self._texts:
            if (text.model.name, text.row) in spoiled:
                self._start_again(text)
                self.num_spoiled += 1
        return draft

    def _done(self, outcome: JobDone) -> None:
        result = outcome.result
        draft = self._end(result.job_id, succeeded=True)
        for text, token in zip(draft.rows, result.tokens.tolist(), strict=True):
            text.num_computed = len(text.tokens)
            text.tokens.append(token)
            if len(text.output) == text.num_tokens:
                text.is_done = True
                self.cache.of(text.model.name).close(text.row)

    def _failed(self, outcome: JobFailed) -> None:
        assert "IndexError" in outcome.message or "process died" in outcome.message, outcome
        self.num_failed += 1
        self._end(outcome.job_id, succeeded=False)
