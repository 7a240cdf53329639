"""Predicts from one unit's reports how long a new request would wait there. No I/O."""

from collections import deque
from dataclasses import dataclass, field

from muxcluster.core.served import ModelStats, UnitStats

UNKNOWN_TOKEN_S = 1e-4  # seconds to prefill a token, before any was measured
# share of the earlier measurements that the next report leaves: about ten reports count
MEMORY = 0.9


@dataclass(slots=True)
class _Speed:
    """Seconds and tokens with exponentially decaying weight."""

    seconds: float = 0.0
    tokens: float = 0.0

    def add(self, seconds: float, tokens: float) -> None:
        self.seconds = MEMORY * self.seconds + seconds
        self.tokens = MEMORY * self.tokens + tokens


@dataclass(slots=True)
class _Model:
    """The queue of one model at the unit."""

    prefill: _Speed = field(default_factory=_Speed)  # of jobs that compute prompts
    queue: _Speed = field(default_factory=_Speed)  # over the time in which tokens waited
    sent: deque[tuple[float, int]] = field(default_factory=deque)  # (time, tokens) since the report
    wait_s: float = 0.0  # predicted wait of what is queued at `at_s`
    at_s: float = 0.0

    @property
    def token_s(self) -> float:
        """Seconds to prefill one token."""
        if self.prefill.tokens < 1.0:
            return UNKNOWN_TOKEN_S
        return self.prefill.seconds / self.prefill.tokens

    @property
    def queued_token_s(self) -> float:
        """Seconds by which a waiting token delays those behind it.

        Measured on the queue while there is one, which includes decodes, other models and missing
        KV blocks; otherwise the speed of prefill jobs.
        """
        if self.queue.seconds <= 0.0:
            return self.token_s
        return max(self.token_s, self.queue.seconds / max(1.0, self.queue.tokens))

    def left_s(self, now: float) -> float:
        return max(0.0, self.wait_s - max(0.0, now - self.at_s))

    def push(self, num_tokens: int, now: float) -> None:
        self.wait_s = self.left_s(now) + num_tokens * self.queued_token_s
        self.at_s = max(self.at_s, now)


class LoadMeter:
    """Learns from each report; between two, it counts what was sent and what should be done.

    All times are on one clock, any.
    """

    def __init__(self) -> None:
        self._latest: UnitStats | None = None
        self._models: dict[str, _Model] = {}

    def hear(self, report: UnitStats, arrived_s: float) -> None:
        """Take a report that came at `arrived_s`; a known one changes nothing.

        The report of a restarted unit, whose clock or counters start again, counts as a first one.
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
            # nothing is prefilled until the weights are resident, and a wake may cost others
            state.wait_s = model.expected_wait_s + model.wake_cost_s
            state.at_s = arrived_s
            state.push(model.waiting_tokens, arrived_s)
            for sent_s, num_tokens in state.sent:
                state.push(num_tokens, sent_s)

    def send(self, model: str, num_tokens: int, now: float) -> None:
        """Count a request sent to the unit; num_tokens: those not known to be cached there."""
        state = self._models.setdefault(model, _Model())
        state.sent.append((now, num_tokens))
        state.push(num_tokens, now)

    def token_s(self, model: str) -> float:
        """Return the seconds to prefill one token of `model`."""
        return self._models.get(model, _Model()).token_s

    def wait_s(self, model: str, now: float) -> float:
        """Return the seconds from `now` until what waits for `model` has been prefilled."""
        state = self._models.get(model)
        return 0.0 if state is None else state.left_s(now)

    def num_requests(self) -> int:
        """Return the open requests of all models, with those sent since the latest report."""
        models = () if self._latest is None else self._latest.models
        there = sum(model.num_running + model.num_waiting for model in models)
        return there + sum(len(state.sent) for state in self._models.values())


def _of(report: UnitStats | None, model: str) -> ModelStats:
    found = () if report is None else report.models
    return next((stats for stats in found if stats.name == model), ModelStats(model))


def _watch_queue(queue: _Speed, before: UnitStats, report: UnitStats, model: ModelStats) -> None:
    """Measure the queue's speed between two reports that both have one."""
    earlier = _of(before, model.name)
    seconds, tokens = report.now_s - before.now_s, model.prompt_tokens - earlier.prompt_tokens
    if min(earlier.waiting_tokens, model.waiting_tokens) > 0 and seconds > 0.0 and tokens >= 0:
        queue.add(seconds, tokens)
