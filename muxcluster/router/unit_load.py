"""What one unit's reports tell of the wait that a new request would have there. No I/O."""

from collections import deque
from dataclasses import dataclass, field

from muxcluster.core.served import ModelStats, UnitStats

UNKNOWN_TOKEN_S = 1e-4
"""Seconds to prefill a token, before any was measured."""
MEMORY = 0.9
"""Share of the earlier measurements that the next report leaves: about ten reports count."""


@dataclass(slots=True)
class _Speed:
    """Seconds and tokens of late, older ones counting less."""

    seconds: float = 0.0
    tokens: float = 0.0

    def add(self, seconds: float, tokens: float) -> None:
        self.seconds = MEMORY * self.seconds + seconds
        self.tokens = MEMORY * self.tokens + tokens


@dataclass(slots=True)
class _Model:
    """prefill: of jobs that compute prompts. queue: of the time in which tokens waited.

    sent: when and how many tokens, since the latest report. wait_s: of what waits at `at_s`.
    """

    prefill: _Speed = field(default_factory=_Speed)
    queue: _Speed = field(default_factory=_Speed)
    sent: deque[tuple[float, int]] = field(default_factory=deque)
    wait_s: float = 0.0
    at_s: float = 0.0

    @property
    def token_s(self) -> float:
        """Seconds that prefilling one token takes."""
        if self.prefill.tokens < 1.0:
            return UNKNOWN_TOKEN_S
        return self.prefill.seconds / self.prefill.tokens

    @property
    def queued_token_s(self) -> float:
        """Seconds by which a waiting token delays those behind it.

        As the queue moves while there is one (decodes, other models and missing KV blocks are in
        it), else as fast as prefill jobs alone.
        """
        if self.queue.seconds <= 0.0:
            return self.token_s
        return max(self.token_s, self.queue.seconds / max(1.0, self.queue.tokens))

    def left_s(self, now: float) -> float:
        """What is left at `now` of the wait."""
        return max(0.0, self.wait_s - max(0.0, now - self.at_s))

    def push(self, num_tokens: int, now: float) -> None:
        """So many tokens more wait."""
        self.wait_s = self.left_s(now) + num_tokens * self.queued_token_s
        self.at_s = max(self.at_s, now)


class LoadMeter:
    """Learns from each report; between two of them it reckons with what was sent and worked off.

    Times of sending, asking and of reports' arrivals are on one clock, any.
    """

    def __init__(self) -> None:
        self._latest: UnitStats | None = None
        self._models: dict[str, _Model] = {}

    def hear(self, report: UnitStats, arrived_s: float) -> None:
        """`report` came at `arrived_s`; one that is known already changes nothing.

        A report of the unit's successor, whose clock or counters start again, is a first one.
        """
        before = self._latest
        if before is not None and report.now_s == before.now_s:
            return
        self._latest = report
        for model in report.models:
            state = self._models.setdefault(model.name, _Model())
            jobs = [j for j in report.jobs if j.model == model.name and j.phase != "decode"]
            if jobs:
                seconds = sum(job.end_s - job.start_s for job in jobs)
                state.prefill.add(seconds, sum(job.num_tokens for job in jobs))
            if before is not None:
                _watch_queue(state.queue, before, report, model)
            while state.sent and state.sent[0][0] < arrived_s:
                state.sent.popleft()
            state.wait_s, state.at_s = 0.0, arrived_s
            state.push(model.waiting_tokens, arrived_s)
            for sent_s, num_tokens in state.sent:
                state.push(num_tokens, sent_s)

    def send(self, model: str, num_tokens: int, now: float) -> None:
        """A request goes to the unit, with so many tokens that its cache is not known to have."""
        state = self._models.setdefault(model, _Model())
        state.sent.append((now, num_tokens))
        state.push(num_tokens, now)

    def token_s(self, model: str) -> float:
        """Seconds that prefilling one token of `model` takes."""
        return self._models.get(model, _Model()).token_s

    def wait_s(self, model: str, now: float) -> float:
        """Seconds until what waits at `now` for `model` has been prefilled."""
        state = self._models.get(model)
        return 0.0 if state is None else state.left_s(now)

    def num_requests(self) -> int:
        """Requests of all models there, with those sent since the latest report."""
        models = () if self._latest is None else self._latest.models
        there = sum(model.num_running + model.num_waiting for model in models)
        return there + sum(len(state.sent) for state in self._models.values())


def _of(report: UnitStats | None, model: str) -> ModelStats:
    found = () if report is None else report.models
    return next((stats for stats in found if stats.name == model), ModelStats(model))


def _watch_queue(queue: _Speed, before: UnitStats, report: UnitStats, model: ModelStats) -> None:
    """Between two reports that both tell of a queue there was always one: how fast did it move?"""
    earlier = _of(before, model.name)
    seconds, tokens = report.now_s - before.now_s, model.prompt_tokens - earlier.prompt_tokens
    if min(earlier.waiting_tokens, model.waiting_tokens) > 0 and seconds > 0.0 and tokens >= 0:
        queue.add(seconds, tokens)
