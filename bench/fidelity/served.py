"""The real side of `bench/engine_fidelity.py`: a unit in this process, requests at their times."""

import gc
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from bench.fidelity.others import ProcessorTime
from muxcluster.core.events import TokenDelta
from muxcluster.core.request import Request
from muxcluster.core.sampling import SamplingParams
from muxcluster.core.served import JobRecord
from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.unit.unit import Unit
from muxcluster.workload.arrival import Arrival
from muxcluster.workload.metrics.records import Record, RecordLog, Records

_LIMIT_S = 600.0
_POLL_S = 2.0  # the unit keeps the last 4096 jobs


@dataclass(slots=True)
class _Answer:
    arrival: Arrival
    times_s: list[float] = field(default_factory=list)  # of each of its tokens


@dataclass(frozen=True, slots=True)
class Served:
    """What came of some requests; seconds from the start of the first."""

    records: Records
    jobs: Sequence[JobRecord]
    late_s: float  # by which the last request of a hundred was sent too late
    others: float | None = None  # share of all processors that others took; None: unknown

    def at(self, slowness: float) -> "Served":
        """Return the same with all times as on a machine that is `slowness` times as fast."""
        rows = self.records.rows.copy()
        for name in ("arrival_s", "first_token_s", "last_token_s"):
            rows[name] /= slowness
        jobs = [
            replace(job, start_s=job.start_s / slowness, end_s=job.end_s / slowness)
            for job in self.jobs
        ]
        return replace(self, records=Records(self.records.models, rows), jobs=jobs)


class Client:
    """Sends requests to one unit when they are due; `hear` is the unit's sink."""

    def __init__(self) -> None:
        self._answers: dict[str, _Answer] = {}
        self._num_ended = 0
        self._error = ""
        self._changed = threading.Condition()

    def hear(self, deltas: Mapping[str, TokenDelta]) -> None:
        """Note new output. Called on the unit's thread."""
        now = time.monotonic()
        with self._changed:
            for request_id, delta in deltas.items():
                answer = self._answers[request_id]
                answer.times_s.extend([now] * len(delta.tokens))
                if delta.finished is None and delta.rejected is None:
                    continue
                self._num_ended += 1
                if len(answer.times_s) != answer.arrival.output_tokens:
                    self._error = f"{request_id} ended after {len(answer.times_s)} tokens: {delta}"
            self._changed.notify_all()

    def run(
        self, unit: Unit, asked: Sequence[Arrival], vocabulary: int, rng: np.random.Generator
    ) -> Served:
        """Send all, wait for their ends. Raises RuntimeError unless each got all its tokens."""
        prompts = [rng.integers(3, vocabulary, a.prompt_tokens).astype(np.int32) for a in asked]
        self._answers = {arrival.request_id: _Answer(arrival) for arrival in asked}
        self._num_ended = 0
        jobs: list[JobRecord] = []
        late_s: list[float] = []
        unit.stats()
        start_s = polled_s = time.monotonic()
        for arrival, prompt in zip(asked, prompts, strict=True):
            due_s = start_s + arrival.time_s
            if due_s - polled_s > _POLL_S:
                polled_s = time.monotonic()
                jobs += unit.stats().jobs
            time.sleep(max(0.0, due_s - time.monotonic()))
            late_s.append(time.monotonic() - due_s)
            unit.submit(_request(arrival, prompt))
        self._wait(unit, jobs)
        jobs += unit.stats().jobs
        since = [
            replace(job, start_s=job.start_s - start_s, end_s=job.end_s - start_s) for job in jobs
        ]
        records = _records(self._answers.values(), start_s)
        return Served(records, since, float(np.percentile(late_s, 99)))

    def _wait(self, unit: Unit, jobs: list[JobRecord]) -> None:
        give_up_s = time.monotonic() + _LIMIT_S
        while True:
            with self._changed:
                is_done = self._changed.wait_for(self._is_over, _POLL_S)
            if is_done and not self._error:
                return
            if self._error or time.monotonic() > give_up_s:
                raise RuntimeError(self._error or "the unit did not answer")
            jobs += unit.stats().jobs

    def _is_over(self) -> bool:
        return bool(self._error) or self._num_ended == len(self._answers)


class Session:
    """A unit in this process for stretches of requests; a context manager."""

    def __init__(self, spec: UnitSpec, seed: int) -> None:
        self._client = Client()
        self._vocabulary = min(model.vocab_size for model in spec.models)
        self._unit = Unit(spec, self._client.hear)
        # Goes on from one stretch to the next: one that is served again has other prompts, none of
        # which the unit has in its prefix cache.
        self._rng = np.random.default_rng(seed)

    def __enter__(self) -> "Session":
        self._unit.start()
        # What this process has simulated is no part of the unit: it is not searched for garbage.
        gc.collect()
        gc.freeze()
        return self

    def __exit__(self, *_: object) -> None:
        gc.unfreeze()
        self._unit.close()

    def serve(self, asked: Sequence[Arrival], slowness: float = 1.0) -> Served:
        """Serve `asked`, sent at `slowness` times their times, and wait for all.

        Raises RuntimeError unless each got all its tokens.
        """
        slower = [replace(each, time_s=slowness * each.time_s) for each in asked]
        before, begun_s = ProcessorTime.now(), time.monotonic()
        served = self._client.run(self._unit, slower, self._vocabulary, self._rng)
        after = ProcessorTime.now()
        if before is None or after is None:
            return served
        return replace(served, others=after.others_since(before, time.monotonic() - begun_s))


def _request(arrival: Arrival, prompt: NDArray[np.int32]) -> Request:
    sampling = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=arrival.output_tokens)
    return Request(
        arrival.request_id,
        arrival.model,
        prompt,
        sampling,
        service_class=arrival.service_class,
    )


def _records(answers: Iterable[_Answer], start_s: float) -> Records:
    log = RecordLog()
    for answer in answers:
        arrival, times_s = answer.arrival, answer.times_s
        log.add(
            Record(
                arrival.model,
                arrival.time_s,
                times_s[0] - start_s,
                times_s[-1] - start_s,
                arrival.prompt_tokens,
                arrival.output_tokens,
                arrival.service_class,
            )
        )
    return log.records()
