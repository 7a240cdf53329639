"""Load of `bench/hybrid/engine.py`: Poisson interactive requests, a closed loop of others."""

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

import numpy as np

from muxcluster.core.events import TokenDelta
from muxcluster.core.request import Request, ServiceClass
from muxcluster.core.sampling import SamplingParams
from muxcluster.engine.unit.unit import Unit

_LIMIT_S = 300.0


@dataclass(frozen=True, slots=True)
class Kind:
    """Requests of a class, with tokens drawn evenly from the first to the last number of each."""

    service: ServiceClass
    prompt: tuple[int, int]
    output: tuple[int, int]


INTERACTIVE = Kind(ServiceClass.INTERACTIVE, (16, 32), (8, 16))
BATCH = Kind(ServiceClass.BATCH, (32, 96), (16, 64))


@dataclass(slots=True, eq=False)
class Answer:
    """One request as its sender sees it, in seconds of `time.monotonic`."""

    request: Request
    due_s: float  # when it should have been sent
    times_s: list[float] = field(default_factory=list)  # of each of its output tokens

    @property
    def is_whole(self) -> bool:
        """True once all tokens are here."""
        return len(self.times_s) == self.request.sampling.max_tokens

    @property
    def ttft_s(self) -> float:
        """Seconds to the first token."""
        return self.times_s[0] - self.due_s

    @property
    def tpot_s(self) -> float:
        """Mean seconds of each token after the first."""
        return (self.times_s[-1] - self.times_s[0]) / (len(self.times_s) - 1)


class Draws:
    """Random requests; the same seed gives the same."""

    def __init__(self, models: Sequence[str], vocabulary: int, seed: int) -> None:
        self._models = models
        self._vocabulary = vocabulary
        self.rng = np.random.default_rng(seed)

    def one(self, kind: Kind, request_id: str) -> Request:
        """Of any of the models, each as often."""
        rng = self.rng
        num_prompt = int(rng.integers(*kind.prompt, endpoint=True))
        num_output = int(rng.integers(*kind.output, endpoint=True))
        prompt = rng.integers(3, self._vocabulary, num_prompt).astype(np.int32)
        model = self._models[int(rng.integers(len(self._models)))]
        sampling = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=num_output)
        return Request(request_id, model, prompt, sampling, service_class=kind.service)


class Traffic:
    """Sends requests to one unit and hears its answers; `hear` is the unit's sink."""

    def __init__(self) -> None:
        self._unit: Unit | None = None
        self._answers: dict[str, Answer] = {}
        self._ids = count()
        self._loop: tuple[Kind, Draws] | None = None
        self._changed = threading.Condition()
        self._error = ""

    def attach(self, unit: Unit) -> None:
        """Requests go there."""
        self._unit = unit

    def hear(self, deltas: Mapping[str, TokenDelta]) -> None:
        """Called on the unit's thread: a request of the closed loop is followed by another."""
        now = time.monotonic()
        for request_id, delta in deltas.items():
            answer = self._answers[request_id]
            answer.times_s.extend([now] * len(delta.tokens))
            if delta.finished is None and delta.rejected is None:
                continue
            loop = self._loop
            if loop is not None and answer.request.service_class is loop[0].service:
                self._send(loop[1].one(loop[0], self._name()), now)
            with self._changed:
                if loop is not None and not answer.is_whole:
                    self._error = f"{request_id} ended after {len(answer.times_s)} tokens"
                self._changed.notify_all()

    def loop(self, kind: Kind, draws: Draws, num_at_once: int) -> None:
        """From now on so many requests at any time, until `stop`."""
        self._loop = (kind, draws)
        for _ in range(num_at_once):
            self._send(draws.one(kind, self._name()), time.monotonic())

    def stop(self) -> None:
        """No loop any more: what is open is aborted, and has ended on return."""
        assert self._unit is not None, "no unit"
        self._loop = None
        for request_id, answer in list(self._answers.items()):
            if not answer.is_whole:
                self._unit.abort(request_id)
        with self._changed:
            self._changed.wait_for(lambda: self._unit is None or not self._unit.num_open, _LIMIT_S)

    def poisson(self, kind: Kind, draws: Draws, rate_per_s: float, num: int) -> list[Answer]:
        """Send requests at random times and wait for their ends.

        Raises RuntimeError where a request, of a loop too, was not answered wholly.
        """
        gaps = draws.rng.exponential(1.0 / rate_per_s, num)
        requests = [draws.one(kind, self._name()) for _ in gaps]
        times = time.monotonic() + np.cumsum(gaps)
        answers = []
        for request, due_s in zip(requests, times.tolist(), strict=True):
            time.sleep(max(0.0, due_s - time.monotonic()))
            answers.append(self._send(request, due_s))
        with self._changed:
            is_done = self._changed.wait_for(lambda: self._have_ended(answers), _LIMIT_S)
        if self._error or not is_done:
            raise RuntimeError(self._error or "the unit did not answer")
        return answers

    def _have_ended(self, answers: Sequence[Answer]) -> bool:
        return bool(self._error) or all(answer.is_whole for answer in answers)

    def tokens_between(self, start_s: float, end_s: float, service: ServiceClass) -> int:
        """Tokens of that class computed meanwhile: outputs, and each prompt with its first."""
        total = 0
        for answer in list(self._answers.values()):
            if answer.request.service_class is not service or not answer.times_s:
                continue
            total += sum(start_s <= time_s < end_s for time_s in list(answer.times_s))
            if start_s <= answer.times_s[0] < end_s:
                total += len(answer.request.prompt_tokens)
        return total

    def _name(self) -> str:
        return str(next(self._ids))

    def _send(self, request: Request, due_s: float) -> Answer:
        assert self._unit is not None, "no unit"
        answer = self._answers[request.request_id] = Answer(request, due_s)
        self._unit.submit(request)
        return answer
