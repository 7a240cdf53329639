"""Units as this server process sees them: their reports, and what these were lately."""

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from muxcluster.core.served import UnitState, UnitStats
from muxcluster.http.live.events import Event, EventLog
from muxcluster.http.live.timeline import ShareTimeline

RATE_S = 5.0  # over which tokens/s are measured
SILENT_S = 5.0  # without a report for so long a unit counts as silent
UP = "up"


@dataclass(frozen=True, slots=True)
class TokenRates:
    """Tokens of a model in a unit, per second."""

    prompt_per_s: float = 0.0
    output_per_s: float = 0.0


@dataclass(frozen=True, slots=True)
class UnitSeen:
    """One unit now."""

    unit_id: str
    state: str  # "up", or what is wrong: a `LinkState`
    age_s: float | None = None  # of its last report
    stats: UnitStats | None = None  # None before the first one
    shares: Mapping[str, Any] | None = None  # `ShareTimeline.told`
    rates: Mapping[str, TokenRates] | None = None  # by model
    stuck_s: float = 0.0  # since a token was computed, or no request ran


class _Reports:
    """The reports of one unit."""

    def __init__(self) -> None:
        self.stats: UnitStats | None = None
        self.heard_s = -math.inf
        self.moved_s = math.inf  # the last report with more tokens, or without running requests
        self.shares = ShareTimeline()
        # Of each report within RATE_S: the unit's clock; prompt and output tokens so far, by model
        self._counts: deque[tuple[float, dict[str, tuple[int, int]]]] = deque()

    def hear(self, stats: UnitStats, heard_s: float) -> None:
        """Take note of a report, unless it is the one before."""
        if self.stats is not None and stats.now_s == self.stats.now_s:
            return
        if self.stats is not None and stats.now_s < self.stats.now_s:
            # another process with another clock
            self.shares = ShareTimeline()
            self._counts.clear()
        if not _is_stuck(stats, self.stats):
            self.moved_s = heard_s
        self.stats, self.heard_s = replace(stats, jobs=()), heard_s
        self.shares.add(stats.jobs, stats.now_s)
        counts = {each.name: (each.prompt_tokens, each.output_tokens) for each in stats.models}
        self._counts.append((stats.now_s, counts))
        while len(self._counts) > 2 and stats.now_s - self._counts[0][0] > RATE_S:
            self._counts.popleft()

    def rates(self) -> dict[str, TokenRates]:
        """Return the rates by model; none before the second report."""
        (first_s, first), (last_s, last) = self._counts[0], self._counts[-1]
        seconds = last_s - first_s
        if seconds <= 0.0:
            return {}
        found = {}
        for model, (prompt, output) in last.items():
            prompt_before, output_before = first.get(model, (prompt, output))
            # a unit that restarted counts from zero again
            found[model] = TokenRates(
                max(0, prompt - prompt_before) / seconds, max(0, output - output_before) / seconds
            )
        return found


class UnitHistory:
    """Reads the units' reports for `UnitMetrics`, and remembers what they said.

    read: as `Backend.stats`, which returns each job once. links: the state of the link to each
    unit, by id; empty where units are in this process.
    """

    def __init__(
        self,
        read: Callable[[], Sequence[UnitStats]],
        links: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        self._read = read
        self._links = links
        self._reports: dict[str, _Reports] = {}
        self._events = EventLog()

    def stats(self) -> Sequence[UnitStats]:
        """Return what `read` does, and take note of it. Units that are gone are forgotten."""
        found = self._read()
        now_s = time.monotonic()
        reported = {stats.unit_id for stats in found}
        self._reports = {
            unit_id: reports for unit_id, reports in self._reports.items() if unit_id in reported
        }
        for stats in found:
            self._reports.setdefault(stats.unit_id, _Reports()).hear(stats, now_s)
        self._events.note(dict(self._observed(now_s)), time.time())
        return found

    def seen(self) -> list[UnitSeen]:
        """Return every unit that has reported or has a link, by id, without shares and rates."""
        now_s, links = time.monotonic(), self._links()
        found = []
        for unit_id in sorted(self._reports.keys() | links.keys()):
            reports, link = self._reports.get(unit_id), links.get(unit_id)
            if reports is None or reports.stats is None:
                found.append(UnitSeen(unit_id, link or "loading"))
                continue
            age_s = now_s - reports.heard_s
            state = link or _state(reports.stats, age_s)
            stuck_s = max(0.0, reports.heard_s - reports.moved_s)
            found.append(UnitSeen(unit_id, state, age_s, reports.stats, stuck_s=stuck_s))
        return found

    def units(self) -> list[UnitSeen]:
        """Return every unit, as `seen`, with its shares and rates."""
        return [self._whole(unit) for unit in self.seen()]

    def _whole(self, unit: UnitSeen) -> UnitSeen:
        reports, stats = self._reports.get(unit.unit_id), unit.stats
        if reports is None or stats is None:
            return unit
        return replace(unit, shares=reports.shares.told(stats.now_s), rates=reports.rates())

    def events(self) -> list[Event]:
        """Return what changed, newest first."""
        return self._events.latest()

    def _observed(self, now_s: float) -> Iterator[tuple[tuple[str, str, str], str]]:
        links = self._links()
        for unit_id in self._reports.keys() | links.keys():
            reports, link = self._reports.get(unit_id), links.get(unit_id)
            stats = None if reports is None else reports.stats
            if reports is None or stats is None:
                yield (unit_id, "", "state"), link or "loading"
                continue
            yield (unit_id, "", "state"), link or _state(stats, now_s - reports.heard_s)
            if stats.sharing is not None:
                yield (unit_id, "", "sharing"), "on" if stats.sharing.is_on else "off"
            for model in stats.models:
                yield (unit_id, model.name, "weights"), model.weights
                yield (unit_id, model.name, "order"), model.order or "none"


def _state(stats: UnitStats, age_s: float) -> str:
    """Return the state of a unit without a link, by its last report."""
    if stats.state is not UnitState.READY:
        return stats.state.value
    return "silent" if age_s > SILENT_S else UP


def _is_stuck(now: UnitStats, before: UnitStats | None) -> bool:
    """True if requests run, and no token was computed between two reports."""
    # those that wait to be restored count as running
    is_busy = any(model.num_running > model.num_lent for model in now.models)
    return is_busy and before is not None and _num_tokens(now) == _num_tokens(before)


def _num_tokens(stats: UnitStats) -> int:
    return sum(model.prompt_tokens + model.output_tokens for model in stats.models)
