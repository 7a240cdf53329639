"""A fake executor with real memory semantics: tokens depend on a row's whole history."""

import threading
from collections import deque
from collections.abc import Mapping, Sequence

import numpy as np

from muxcluster.core.backends import ModelBackend
from muxcluster.core.events import FinishReason, TokenDelta
from muxcluster.core.job import Job, JobResult, WorkerSpec
from muxcluster.core.kvshape import KvShape, block_bytes
from muxcluster.core.request import Request
from muxcluster.core.sampling import SamplingParams
from muxcluster.core.unitspec import ModelSpec, SchedulerSpec, UnitSpec
from muxcluster.engine.executor import JobDone, JobFailed, Outcome, OwnerLost
from tests.blocks import block_tokens

VOCAB = 997
PATIENCE_S = 600.0
"""For what must happen, however busy the machine is; below the time limit of a test."""


def next_token(history: Sequence[int]) -> int:
    """The fake model: every token and its position matter."""
    return sum((i + 1) * token for i, token in enumerate(history)) % VOCAB


def expected(prompt: Sequence[int], num_tokens: int) -> list[int]:
    """What the fake model must produce."""
    history = list(prompt)
    for _ in range(num_tokens):
        history.append(next_token(history))
    return history[len(prompt) :]


def fake_spec(num_columns: int = 64, lane: str = "adbs") -> UnitSpec:
    """Two models of different shapes; blocks of 16 and 32 tokens."""
    models = tuple(
        ModelSpec(
            name=name,
            path="",
            shape=KvShape(num_layers=2, num_kv_heads=2, head_dim=head_dim, itemsize=2),
            vocab_size=VOCAB,
            max_model_len=512,
            eos_token_ids=(),
            max_seqs=8,
        )
        for name, head_dim in (("wide", 128), ("narrow", 64))
    )
    return UnitSpec(
        unit_id="unit-0",
        models=models,
        num_blocks=4 * num_columns,
        block_bytes=block_bytes(block_tokens(16), 2),
        workers=(WorkerSpec(0, (0.5,)), WorkerSpec(1, (0.5,))),
        scheduler=SchedulerSpec(lane=lane),
    )


def request(request_id: str, model: str, prompt: Sequence[int], num_tokens: int) -> Request:
    """A greedy request that runs to `num_tokens`."""
    sampling = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True)
    return Request(request_id, model, np.asarray(prompt, dtype=np.int32), sampling)


class FakeExecutor:
    """Runs one job per wait; `script` may name a fate for the next jobs, one entry a job.

    fates: "done", "failed", "owner lost", "raise", "hold" (nothing ends until `release`).
    """

    def __init__(self, script: Sequence[str] = ()) -> None:
        self.script = deque(script)
        self.launched: list[Job] = []
        self.is_closed = False
        self.backends: tuple[ModelBackend, ...] = ()
        self.num_restarts = 0
        self._queue: deque[Job] = deque()
        self._failed: set[int] = set()
        self._histories: dict[tuple[str, int], dict[int, int]] = {}
        self._known: dict[int, set[tuple[str, int]]] = {}
        self._wake = threading.Event()
        self._released = threading.Event()

    @property
    def is_recovering(self) -> bool:
        return False

    def start(self) -> None:
        self._histories.clear()

    def launch(self, job: Job) -> None:
        theirs = [queued for queued in self._queue if queued.worker_id == job.worker_id]
        before = [queued.job_id for queued in theirs if queued.follows not in self._failed]
        assert not before or job.follows == before[-1]
        self.launched.append(job)
        self._queue.append(job)

    def wait(self, timeout_s: float | None) -> Sequence[Outcome]:
        if not self._queue:
            self._wake.wait(timeout_s)
            self._wake.clear()
            return []
        fate = self.script.popleft() if self.script else "done"
        if fate == "hold":
            if not self._released.is_set():
                self.script.appendleft(fate)
                self._wake.wait(timeout_s)
                self._wake.clear()
                return []
            fate = "done"
        return [self._end(fate)]

    def release(self) -> None:
        self._released.set()
        self._wake.set()

    def restart(self) -> None:
        self.num_restarts += 1
        self.start()

    def wake(self) -> None:
        self._wake.set()

    def kill(self) -> None:
        self.release()

    def close(self) -> None:
        self.is_closed = True

    def _end(self, fate: str) -> Outcome:
        job = self._queue.popleft()
        if fate == "raise":
            raise RuntimeError("the executor broke")
        if fate == "owner lost":
            self._queue.clear()
            return OwnerLost("killed by the test")
        if job.follows in self._failed:
            self._failed.add(job.job_id)
            return JobFailed(job.job_id, job.worker_id, "what it follows failed")
        result = self._execute(job)
        if fate == "failed":
            self._failed.add(job.job_id)
            return JobFailed(job.job_id, job.worker_id, "killed by the test")
        return JobDone(result)

    def _execute(self, job: Job) -> JobResult:
        for admission in job.admissions:
            tokens = dict(enumerate(admission.tokens.tolist()))
            self._histories[job.model, admission.row] = tokens
        tokens: list[int] = []
        counts: list[int] = []
        rows = job.rows
        for row, start, count, samples in zip(
            rows.table_rows.tolist(),
            rows.starts.tolist(),
            rows.counts.tolist(),
            rows.samples.tolist(),
            strict=True,
        ):
            history = self._histories[job.model, row]
            steps = job.max_steps if samples else 0
            for end in range(start + count, start + count + steps):
                history[end] = next_token([history[i] for i in range(end)])
                tokens.append(history[end])
            counts.append(steps)
        return JobResult(
            job_id=job.job_id,
            tokens=np.asarray(tokens, dtype=np.int32),
            counts=np.asarray(counts, dtype=np.int32),
            seconds=0.001,
            logprobs={},
            prompt_logprobs={},
        )


class Sink:
    """Collects deltas; knows which requests ended, and asserts that none ends twice."""

    def __init__(self) -> None:
        self.tokens: dict[str, list[int]] = {}
        self.vectors: dict[str, bytes] = {}
        self.ends: dict[str, TokenDelta] = {}
        self.threads: set[str] = set()
        self._changed = threading.Condition()

    def __call__(self, deltas: Mapping[str, TokenDelta]) -> None:
        with self._changed:
            self.threads.add(threading.current_thread().name)
            for request_id, delta in deltas.items():
                assert request_id not in self.ends, f"{request_id} got more after its end"
                self.tokens.setdefault(request_id, []).extend(delta.tokens)
                if delta.vector:
                    assert request_id not in self.vectors, f"{request_id} got a second vector"
                    self.vectors[request_id] = delta.vector
                if delta.finished is not None or delta.rejected is not None:
                    self.ends[request_id] = delta
            self._changed.notify_all()

    def clear(self) -> None:
        """Forget everything, so that ids may come again."""
        with self._changed:
            self.tokens, self.vectors, self.ends = {}, {}, {}

    def wait_for_ends(self, count: int, timeout_s: float = PATIENCE_S) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.ends) >= count, timeout_s), (
                f"{len(self.ends)} of {count} requests ended"
            )

    def wait_for_tokens(self, request_id: str, count: int, timeout_s: float = PATIENCE_S) -> None:
        with self._changed:
            assert self._changed.wait_for(
                lambda: len(self.tokens.get(request_id, ())) >= count, timeout_s
            )

    def reason(self, request_id: str) -> FinishReason:
        finished = self.ends[request_id].finished
        assert finished is not None, self.ends[request_id].rejected
        return finished.reason
