"""A unit's scheduler in steady state: instant fake workers, virtual time, a constant population.

Whoever ends is replaced at once, so that decode, block growth, ends, admission, prefill and
eviction from a full prefix cache all happen at the rate that the lengths of requests imply.
"""

import csv
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count, cycle
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from muxcluster.core.events import Finished, StepOutput
from muxcluster.core.job import Job, JobResult, Phase, WorkerSpec
from muxcluster.core.kvshape import KvShape, block_bytes
from muxcluster.core.request import Request, ServiceClass, Slo
from muxcluster.core.sampling import SamplingParams
from muxcluster.core.unitspec import ModelSpec, SchedulerSpec, UnitSpec
from muxcluster.scheduling.scheduler import UnitScheduler
from muxcluster.scheduling.steptime.line import Line
from muxcluster.scheduling.steptime.seed import Seed

VOCAB = 32000
EOS = 2
MAX_LEN = 4096
BLOCK_TOKENS = 16
TRACE = Path("azure_llm_2023") / "AzureLLMInferenceTrace_conv.first30min.csv"
_SPARE_ROWS = 32
# Pool over what running sequences need on average; prefixes of ended ones fill the rest.
_SPARE_MEMORY = 1.5
_FILLER_TOKENS = 512
_JOB_S, _TOKEN_S = 0.02, 5e-5
_WORKERS = (WorkerSpec(0, (0.5, 1.0)), WorkerSpec(1, (0.5, 1.0)))


@dataclass(frozen=True, slots=True, eq=False)
class Lengths:
    """Pairs of prompt and output tokens to draw from, int64 [n] each."""

    prompt: NDArray[np.int64]
    output: NDArray[np.int64]

    def aged(self, number: int, rng: np.random.Generator) -> Iterator[tuple[int, int, int]]:
        """(prompt, output, output so far) of requests found running at a random moment.

        Such a look finds long outputs in proportion to their length, at any age.
        """
        chosen = rng.choice(len(self.output), number, p=self.output / self.output.sum())
        ages = (rng.random(number) * self.output[chosen]).astype(np.int64)
        yield from zip(
            self.prompt[chosen].tolist(), self.output[chosen].tolist(), ages.tolist(), strict=True
        )

    def draw(self, rng: np.random.Generator) -> tuple[int, int]:
        """(prompt, output) of a request that arrives."""
        pick = int(rng.integers(len(self.prompt)))
        return int(self.prompt[pick]), int(self.output[pick])

    @property
    def mean_live_tokens(self) -> float:
        """Tokens of a running sequence, averaged over time."""
        weights = self.output / self.output.sum()
        return float((weights * (self.prompt + self.output / 2)).sum())


def sharegpt_lengths(rng: np.random.Generator, number: int = 20_000) -> Lengths:
    """Log-normal around ShareGPT's means as MuxServe gives them (§4.1): 161 and 338 tokens."""
    sigma = 0.8
    prompt, output = (
        np.clip(rng.lognormal(math.log(mean) - sigma**2 / 2, sigma, number), 2, MAX_LEN // 2 - 1)
        for mean in (161.0, 338.0)
    )
    return Lengths(prompt.astype(np.int64), output.astype(np.int64))


def trace_lengths(data: Path) -> Lengths | None:
    """Lengths of the Azure conversation trace; None where `data` does not hold it."""
    if not (data / TRACE).is_file():
        return None
    with (data / TRACE).open(newline="") as file:
        rows = list(csv.DictReader(file))
    prompt = np.array([int(row["ContextTokens"]) for row in rows])
    output = np.array([int(row["GeneratedTokens"]) for row in rows])
    return Lengths(np.clip(prompt, 2, MAX_LEN - 1025), np.clip(output, 2, 1024))


def unit_spec(shape: KvShape, num_models: int, num_running: int, mean_tokens: float) -> UnitSpec:
    """A unit for `num_running` sequences, spread evenly; every sequence fits into one job.

    Everything else is what the engine serves with: adbs, priority, prefix caching, two workers.
    """
    rows = -(-num_running // num_models)
    max_seqs = rows + _SPARE_ROWS
    width = shape.block_tokens(block_bytes(BLOCK_TOKENS, shape.itemsize))
    least = -(-MAX_LEN // width)
    columns = max(least, int(_SPARE_MEMORY * rows * (mean_tokens / width + 1)))
    models = tuple(
        ModelSpec(
            name=f"m{index}",
            path="",
            shape=shape,
            vocab_size=VOCAB,
            max_model_len=MAX_LEN,
            eos_token_ids=(EOS,),
            max_seqs=max_seqs,
            slo=Slo(1.0, 0.2),
        )
        for index in range(num_models)
    )
    return UnitSpec(
        unit_id="bench",
        models=models,
        num_blocks=num_models * columns * shape.blocks_per_column,
        block_bytes=block_bytes(BLOCK_TOKENS, shape.itemsize),
        workers=_WORKERS,
        scheduler=SchedulerSpec(max_decode_rows=max_seqs),
    )


def work_s(num_tokens: float) -> float:
    """Virtual seconds of a job on all SMs."""
    return _JOB_S + _TOKEN_S * num_tokens


class Profiled:
    """What a profile of the fake workers would say."""

    def line(self, phase: Phase, model: str, share: float) -> Line | None:
        """The same for every model, and for both phases."""
        return None if phase is Phase.MIXED else Line(_JOB_S / share, _TOKEN_S / share, 0.0)


class SteadyLoad:
    """`num_running` requests that never get fewer, and the scheduler that serves them.

    Does what a driver does around the scheduler's calls, which are left to the caller, who times
    them: `launch` what `next_jobs` returned, `finish` the job that ends first for `complete`,
    then `add` the `replacements` of what ended.
    """

    def __init__(
        self,
        spec: UnitSpec,
        lengths: Lengths,
        num_running: int,
        rng: np.random.Generator,
        seed: Seed | None = None,
    ) -> None:
        """seed: what the scheduler knows of the workers' speed before the first job."""
        self.scheduler = UnitScheduler(spec, seed=seed)
        self.now = 0.0
        self._spec = spec
        self._lengths = lengths
        self._rng = rng
        self._names = count()
        self._live: dict[str, tuple[str, ServiceClass]] = {}
        self._running: list[tuple[float, Job]] = []
        self._fill(num_running)

    def _fill(self, num_running: int) -> None:
        """Bring the population and the prefix cache to their steady state."""
        names = [model.name for model in self._spec.models]
        models = cycle(names)
        for prompt, output, age in self._lengths.aged(num_running, self._rng):
            self._add(next(models), prompt, output, age)
        self._prefill_all()
        column = self._spec.models[0].shape.blocks_per_column
        while self.scheduler.stats(self.now, "").free_blocks > 2 * len(names) * column:
            for name in names:
                self._add(name, _FILLER_TOKENS, 1)
            self._prefill_all()
        for _ in range(num_running - len(self._live)):
            self._add(next(models), *self._lengths.draw(self._rng))

    def _add(
        self,
        model: str,
        prompt: int,
        output: int,
        age: int = 0,
        service: ServiceClass = ServiceClass.INTERACTIVE,
    ) -> None:
        self.scheduler.add(self._request((model, service), prompt, output, age), self.now)

    def _prefill_all(self) -> None:
        """Compute what waits. Decodes, which would age the population, stay in flight."""
        while True:
            self.launch(self.scheduler.next_jobs(self.now))
            self._running.sort(key=lambda entry: entry[1].phase is Phase.DECODE)
            waiting = sum(m.num_waiting for m in self.scheduler.stats(self.now, "").models)
            if not waiting and self._running[0][1].phase is Phase.DECODE:
                return
            job = self._running.pop(0)[1]
            self._forget_ended(self.scheduler.complete(job, self._run(job), self.now))

    def _request(
        self, kind: tuple[str, ServiceClass], num_prompt: int, num_output: int, age: int = 0
    ) -> Request:
        """A request with random tokens, `age` of its output produced before."""
        tokens = self._rng.integers(EOS + 1, VOCAB, num_prompt + age, dtype=np.int32)
        name = f"r{next(self._names)}"
        self._live[name] = kind
        sampling = SamplingParams(max_tokens=num_output)
        prompt, before = tokens[:num_prompt], tokens[num_prompt:]
        return Request(name, kind[0], prompt, sampling, before, service_class=kind[1])

    def _forget_ended(self, output: StepOutput) -> list[tuple[str, ServiceClass]]:
        """Model and class of the requests that ended."""
        ended = [e.request_id for e in output.events if isinstance(e, Finished)]
        return [self._live.pop(name) for name in ended]

    def replacements(self, output: StepOutput) -> list[Request]:
        """A new request of the same model and class for each that ended."""
        kinds = self._forget_ended(output)
        return [self._request(kind, *self._lengths.draw(self._rng)) for kind in kinds]

    def launch(self, jobs: Iterable[Job]) -> None:
        """`jobs` run from now on; how long they take decides only the order of their ends."""
        for job in jobs:
            seconds = work_s(int(job.rows.counts.sum())) / job.share
            self._running.append((self.now + seconds, job))

    def finish(self) -> tuple[Job, JobResult]:
        """The running job that ends first, and what it sampled; time moves there."""
        entry = min(self._running, key=lambda entry: entry[0])
        self._running.remove(entry)
        self.now = max(self.now, entry[0])
        return entry[1], self._run(entry[1])

    def _run(self, job: Job) -> JobResult:
        """Random tokens, none of them an end token."""
        counts = job.rows.samples.astype(np.int32)
        tokens = self._rng.integers(EOS + 1, VOCAB, int(counts.sum()), dtype=np.int32)
        return JobResult(job.job_id, tokens, counts, 0.0, {}, {})
