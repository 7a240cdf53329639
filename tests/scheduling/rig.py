"""Drives a scheduler with fake workers on virtual time and collects what every request gets."""

import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from muxcluster.core.events import Finished, FinishReason, Preempted, Rejected, StepOutput
from muxcluster.core.job import Job, JobResult, WorkerSpec
from muxcluster.core.kvshape import KvShape, block_bytes
from muxcluster.core.request import Request
from muxcluster.core.sampling import SamplingParams
from muxcluster.core.unitspec import ModelSpec, SchedulerSpec, UnitSpec
from muxcluster.scheduling.scheduler import UnitScheduler
from muxcluster.scheduling.steptime.seed import Seed
from tests.amounts import slow
from tests.scheduling.fake_worker import EOS, VOCAB, FakeMemory, token_of

LANES = ("adbs", "temporal", "round-robin", "mixed")
SOME_LANES = ("adbs", *slow("temporal", "round-robin"), "mixed")
LADDER = (0.25, 0.5, 0.75, 1.0)
TWO_WORKERS = (WorkerSpec(0, LADDER), WorkerSpec(1, LADDER))


def model_spec(name: str, **changes) -> ModelSpec:
    """A small model: 4 blocks a column, 8 tokens a block at BLOCK_BYTES."""
    spec = ModelSpec(
        name=name,
        path="",
        shape=KvShape(num_layers=2, num_kv_heads=2, head_dim=128, itemsize=2),
        vocab_size=VOCAB,
        max_model_len=64,
        eos_token_ids=(EOS,),
        max_seqs=6,
        mean_prompt_tokens=20.0,
        mean_output_tokens=12.0,
    )
    return replace(spec, **changes)


def mixed_models() -> tuple[ModelSpec, ...]:
    """Three models of three shapes."""
    wide = KvShape(num_layers=2, num_kv_heads=2, head_dim=64, itemsize=2)
    deep = KvShape(num_layers=3, num_kv_heads=3, head_dim=128, itemsize=2)
    return model_spec("a"), model_spec("b", shape=wide, max_seqs=3), model_spec("c", shape=deep)


def unit_spec(
    models=None, *, num_blocks=200, workers=TWO_WORKERS, num_host_blocks=0, **policy
) -> UnitSpec:
    """A unit with blocks of 8 tokens at head_dim 128; three models where none are given."""
    if models is None:
        models = mixed_models()
    scheduler = replace(SchedulerSpec(token_budget=32, quota_period_s=3.0), **policy)
    return UnitSpec(
        "unit",
        tuple(models),
        num_blocks,
        block_bytes(8, 2),
        workers,
        scheduler,
        num_host_blocks=num_host_blocks,
    )


def request(request_id: str, model: str = "a", num_prompt: int = 10, num_output: int = 5, **more):
    """A request; sampling parameters and request fields by name. Prompts come from its id."""
    fields = {name: more.pop(name) for name in tuple(more) if name in Request.__slots__}
    prompt = fields.pop("prompt_tokens", None)
    if prompt is None:
        prompt = [token_of(f"prompt {request_id}", i) for i in range(num_prompt)]
    more.setdefault("ignore_eos", True)
    sampling = SamplingParams(max_tokens=num_output, **more)
    return Request(request_id, model, np.asarray(prompt, dtype=np.int32), sampling, **fields)


def expected_output(asked: Request, max_model_len: int = 64) -> list[int]:
    """What `asked` must get, whatever the schedule: the oracle knows no scheduler."""
    sampling, num_prompt = asked.sampling, len(asked.prompt_tokens)
    ends = set(sampling.stop_token_ids) | (set() if sampling.ignore_eos else {EOS})
    limit = min(sampling.max_tokens, max(max_model_len - num_prompt, 1))
    output: list[int] = []
    while len(output) < limit and not (output and output[-1] in ends):
        output.append(token_of(asked.request_id, len(output)))
    return output


class Rig:
    """One scheduler, its workers and everything that came out of it."""

    def __init__(
        self,
        spec: UnitSpec,
        seed: int = 0,
        *,
        checks: bool = True,
        times: Seed | None = None,
        **kwargs,
    ) -> None:
        """times: what the scheduler knows of step times at first."""
        self.spec = spec
        self.scheduler = UnitScheduler(spec, seed=times, **kwargs)
        self.memory = FakeMemory(spec)
        self.now = 100.0
        self.running: list[tuple[float, Job]] = []
        self._early: dict[int, JobResult] = {}
        self.refused: list[Job] = []
        self.jobs: list[Job] = []
        self.tokens: dict[str, list[int]] = defaultdict(list)
        self.ends: dict[str, Finished | Rejected] = {}
        self.add_s: dict[str, float] = {}
        self.end_s: dict[str, float] = {}
        self.first_token_s: dict[str, float] = {}
        self.preempted: list[str] = []
        self.prompt_logprobs: dict[str, list[int]] = defaultdict(list)
        self.num_accepted = 0
        self._rng = random.Random(seed)
        self._early_rng = random.Random(f"early {seed}")
        self._checks = checks

    def add(self, *requests: Request) -> None:
        for asked in requests:
            self.num_accepted += 1
            self.add_s[asked.request_id] = self.now
            self.take(self.scheduler.add(asked, self.now))

    def abort(self, request_id: str) -> None:
        self.take(self.scheduler.abort(request_id, self.now))

    def take(self, output: StepOutput | None) -> None:
        """Record an output and check its form."""
        if output is None:
            return
        assert len(output.request_ids) == len(output.counts)
        assert output.counts.sum() == len(output.tokens)
        start = 0
        for row, (name, count) in enumerate(
            zip(output.request_ids, output.counts.tolist(), strict=True)
        ):
            assert name not in self.ends, "tokens after the end"
            if count:
                self.first_token_s.setdefault(name, self.now)
            self.tokens[name] += output.tokens[start : start + count].tolist()
            start += count
            entries = output.prompt_logprobs.get(row, ())
            self.prompt_logprobs[name] += [entry.rank for entry in entries]
        for event in output.events:
            if isinstance(event, Preempted):
                self.preempted.append(event.request_id)
                continue
            assert event.request_id not in self.ends, "a request ended twice"
            self.ends[event.request_id] = event
            self.end_s[event.request_id] = self.now
            if isinstance(event, Finished):
                self._check_account(event)

    def _check_account(self, end: Finished) -> None:
        parts = (end.queue_s, end.prefill_s, end.decode_s, end.preempted_s, end.restore_s)
        assert min(parts) >= 0
        whole = self.now - self.add_s[end.request_id]
        assert abs(sum(parts) - whole) < 1e-9, f"{end} lasted {whole}"
        assert -1e-9 <= end.decode_running_s <= end.decode_s + 1e-9

    def launch(self) -> list[Job]:
        """Start what the scheduler wants to run."""
        jobs = self.scheduler.next_jobs(self.now)
        if len(self.jobs) % 4 == 0:
            self.check()
        for job in jobs:
            self.jobs.append(job)
            self.running.append((self._start_s(job) + self.seconds(job), job))
            # A job touches memory at some moment between its start and its end.
            is_next = job.follows is None or job.follows in self._early
            if is_next and self._early_rng.random() < 0.5:
                self._early[job.job_id] = self.memory.run(job)
        self.running.sort(key=lambda entry: (entry[0], entry[1].job_id))
        self._refuse()
        return jobs

    def _start_s(self, job: Job) -> float:
        """Now, or when the job that it follows ends: a worker runs one after the other."""
        before = [end_s for end_s, other in self.running if other.job_id == job.follows]
        assert len(before) == (job.follows is not None), "it follows none that runs"
        return before[0] if before else self.now

    def _refuse(self) -> None:
        """Workers do not run what follows a job that failed."""
        refused, self.refused = self.refused, []
        for job in refused:
            output = self.scheduler.fail(job, self.now, "the worker refused it")
            assert not output.events and not len(output.tokens)

    def seconds(self, job: Job) -> float:
        """Prefill costs per token, decode is flat; both are faster on a larger share."""
        work = 0.02 + 0.001 * int(job.rows.counts.sum()) * job.max_steps
        return work * self._rng.uniform(0.9, 1.1) / job.share

    def finish(self, worker_id: int | None = None) -> Job:
        """The running job that ends first ends, or that of a worker (out of its turn)."""
        workers = [job.worker_id for _, job in self.running]
        end_s, job = self.running.pop(0 if worker_id is None else workers.index(worker_id))
        self.now = max(self.now, end_s)
        result = self._early.pop(job.job_id, None) or self.memory.run(job)
        self.take(self.scheduler.complete(job, result, self.now))
        self.check()
        return job

    def names_in(self, job: Job) -> set[str]:
        """Requests that run in `job`."""
        seen = {(j.model, a.row): a.request_id for j in self.jobs for a in j.admissions}
        return {seen[job.model, row] for row in job.rows.table_rows.tolist()}

    def fail(self, job: Job | None = None) -> None:
        """`job` fails (the one that ends first where none is given), its memory half written."""
        entry = next(e for e in self.running if job is None or e[1] is job)
        self.running.remove(entry)
        self.now = max(self.now, entry[0])
        if self._early.pop(entry[1].job_id, None) is None and self._early_rng.random() < 0.7:
            self.memory.run(entry[1])
        self.refused += [other for _, other in self.running if other.follows == entry[1].job_id]
        self.running = [each for each in self.running if each[1] not in self.refused]
        self.take(self.scheduler.fail(entry[1], self.now, "the test failed it"))
        if self._early_rng.random() < 0.5:
            self._refuse()
        self.check()

    def reset(self) -> None:
        """The memory's owner restarts empty."""
        self.running.clear()
        self.refused.clear()
        self._early.clear()
        self.memory = FakeMemory(self.spec)
        self.take(self.scheduler.reset(self.now, "the test reset it"))
        self.check()

    def check(self) -> None:
        if self._checks:
            self.scheduler.check()

    def quotas(self) -> dict[str, int]:
        stats = self.scheduler.stats(self.now, "unit")
        return {model.name: model.quota_blocks for model in stats.models}

    @property
    def num_open(self) -> int:
        return self.num_accepted - len(self.ends)

    def step(self) -> None:
        """Launch, then end one job; asserts that open requests never stand still."""
        self.launch()
        assert self.running or not self.num_open, "requests wait and nothing runs"
        if self.running:
            self.finish()

    def run(self, max_steps: int = 20_000) -> "Rig":
        """To the end of every request."""
        for _ in range(max_steps):
            if not self.num_open:
                return self
            self.step()
        raise AssertionError(f"{self.num_open} requests still open after {max_steps} steps")

    def run_failing(
        self, killed: str, arrivals: Mapping[int, Sequence[Request]] | None = None
    ) -> set[str]:
        """To the end of every request; the names of those whose job failed.

        killed: jobs with such copies ("saves" or "restores") fail, each request's first one; "":
        none does. arrivals: requests to add before the step of that number.
        """
        coming, hit = dict(arrivals or {}), set[str]()
        for step in range(4000):
            self.add(*coming.pop(step, ()))
            if not self.num_open and not coming:
                return hit
            self.launch()
            job = self.running[0][1]
            names = self.names_in(job)
            if killed and not names & hit and any(len(getattr(c, killed)) for c in job.copies):
                hit |= names
                self.fail(job)
            else:
                self.finish()
        raise AssertionError(f"{self.num_open} requests still open")

    def run_until(self, end_s: float) -> "Rig":
        """Until virtual time `end_s` or nothing is left."""
        while self.num_open and self.now < end_s:
            self.step()
        return self

    def check_empty(self) -> None:
        """Nothing leaks: every block is free or cached without a reader."""
        stats = self.scheduler.stats(self.now, "unit")
        assert not self.running
        assert stats.free_blocks + sum(m.cached_blocks for m in stats.models) == stats.num_blocks
        assert all(m.used_blocks == m.num_running == m.num_waiting == 0 for m in stats.models)
        self.check_asleep()

    def check_asleep(self) -> None:
        """No time is left at which something would happen by itself."""
        assert self.scheduler.next_wakeup(self.now) is None

    def check_outputs(self, requests) -> None:
        """Every request got exactly the oracle's tokens and the right end."""
        for asked in requests:
            output = expected_output(asked)
            assert self.tokens[asked.request_id] == output, asked.request_id
            end = self.ends[asked.request_id]
            assert isinstance(end, Finished), end
            stops = set(asked.sampling.stop_token_ids)
            stops |= set() if asked.sampling.ignore_eos else {EOS}
            is_stop = output[-1] in stops
            assert end.reason is (FinishReason.STOP if is_stop else FinishReason.LENGTH)
            assert end.stop_token == (output[-1] if is_stop else None)
