"""Units with real worker processes in tests: finding, watching and killing their processes."""

import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from muxcluster.core.job import Job
from muxcluster.core.sampling import SamplingParams
from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.executor import JobDone, JobFailed, Outcome, OwnerLost, StillRunning
from muxcluster.engine.processes.executor import ProcessExecutor
from muxcluster.engine.processes.launcher import ProcessLauncher
from muxcluster.engine.processes.liveness import Patience
from muxcluster.engine.unit.unit import Unit
from tests.engine.fakes import PATIENCE_S, Sink
from tests.engine.units import check_lengths, check_nothing_leaks, prompts, submit

NUM_TOKENS = 20
SAMPLED = SamplingParams(
    temperature=0.9,
    top_k=40,
    top_p=0.95,
    repetition_penalty=1.1,
    frequency_penalty=0.2,
    max_tokens=NUM_TOKENS,
    ignore_eos=True,
)


def asked_of(spec: UnitSpec, count: int = 16) -> dict[str, list[int]]:
    """`count` requests spread evenly over the models."""
    asked: dict[str, list[int]] = {}
    for i, model in enumerate(spec.models):
        share = len(range(i, count, len(spec.models)))
        asked |= prompts(model.name, share, model.vocab_size)
    return asked


class CopyKills:
    """Kills the first worker that saves, the next that restores, and so on; sees each job sent."""

    def __init__(self, executor: ProcessExecutor, *, delays_s: Sequence[float] = (0.0,)) -> None:
        """delays_s: from a job's launch to the kill, of each worker that saves and one that
        restores."""
        self._executor = executor
        self._wanted = [(copies, delay) for delay in delays_s for copies in ("saves", "restores")]
        self.killed: list[int] = []  # process ids

    @property
    def is_over(self) -> bool:
        return not self._wanted

    def __call__(self, job: Job) -> None:
        pid = children(self._executor.owner_pid).get(f"mux-worker-{job.worker_id}")
        if self.is_over or pid is None or pid in self.killed:
            return
        copies, delay_s = self._wanted[0]
        if any(len(getattr(each, copies)) for each in job.copies):
            time.sleep(delay_s)
            os.kill(pid, signal.SIGKILL)
            self.killed.append(pid)
            del self._wanted[0]


def children(pid: int) -> dict[str, int]:
    """Process ids of the living children of `pid` by name."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                head, _, tail = (entry / "stat").read_text().rpartition(")")
            except (FileNotFoundError, ProcessLookupError):
                continue
            state, parent, *_ = tail.split()
            if int(parent) == pid and state != "Z":
                found[head.partition("(")[2]] = int(entry.name)
    return found


def workers_of(owner: int, count: int) -> list[int]:
    """Process ids of the owner's workers, once all are forked (the unit does not wait for that)."""
    deadline = time.monotonic() + PATIENCE_S
    names = [f"mux-worker-{worker_id}" for worker_id in range(count)]
    while not set(names) <= (found := children(owner)).keys():
        assert time.monotonic() < deadline, f"only {found}"
        time.sleep(0.02)
    return [found[name] for name in names]


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def wait_until_gone(pids: list[int], timeout_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if all(is_gone(pid) for pid in pids):
            return
        time.sleep(0.02)
    raise AssertionError(f"still there: {[pid for pid in pids if not is_gone(pid)]}")


class RecordingExecutor(ProcessExecutor):
    """Knows what runs where, and every outcome but the good ones."""

    def __init__(
        self,
        spec: UnitSpec,
        patience: Patience | None = None,
        launcher: ProcessLauncher | None = None,
    ) -> None:
        super().__init__(spec, patience, launcher)
        self.running: dict[int, int] = {}
        self.misfortunes: list[JobFailed | OwnerLost] = []

    def launch(self, job: Job) -> None:
        self.running[job.job_id] = job.worker_id
        super().launch(job)

    def wait(self, timeout_s: float | None) -> Sequence[Outcome]:
        outcomes = super().wait(timeout_s)
        for outcome in outcomes:
            if isinstance(outcome, StillRunning):
                continue
            if isinstance(outcome, JobDone):
                del self.running[outcome.result.job_id]
            else:
                self.misfortunes.append(outcome)
                if isinstance(outcome, JobFailed):
                    del self.running[outcome.job_id]
                else:
                    self.running.clear()
        return outcomes

    def wait_for_job_on(self, worker_id: int) -> None:
        """Block until a job has been with the (stopped) worker for a while."""
        deadline = time.monotonic() + PATIENCE_S
        seen: set[int] = set()
        while True:
            here = {job for job, worker in dict(self.running).items() if worker == worker_id}
            if here & seen:
                return
            seen = here
            assert time.monotonic() < deadline, f"no job for worker {worker_id}"
            time.sleep(0.2)


@dataclass
class Live:
    """A unit that many tests use in turn; a killed process is replaced, so none spoils it."""

    executor: RecordingExecutor
    unit: Unit
    sink: Sink

    @property
    def workers(self) -> list[int]:
        return workers_of(self.executor.owner_pid, 2)

    def run(self, asked: dict[str, list[int]], sampling: SamplingParams) -> dict[str, list[int]]:
        submit(self.unit, asked, sampling, seeded=True)
        return self.finish(asked)

    def finish(
        self, asked: dict[str, list[int]], num_tokens: int = NUM_TOKENS
    ) -> dict[str, list[int]]:
        """Tokens of all, after checking that all ended well and gave back their blocks."""
        self.sink.wait_for_ends(len(asked))
        check_lengths(self.sink, asked, num_tokens)
        check_nothing_leaks(self.unit)
        return self.sink.tokens
