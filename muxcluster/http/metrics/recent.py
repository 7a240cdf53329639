"""The requests that ended last, kept for the live view and for `muxcluster trace`."""

import math
from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from muxcluster.core.events import FinishReason
from muxcluster.core.request import ServiceClass, Slo

MAX_KEPT = 4096  # requests, about a kilobyte each
WINDOW_S = 60.0  # of the figures by model
REJECTED = "rejected"  # the end of a request that no unit took


@dataclass(frozen=True, slots=True)
class EndedRequest:
    """One choice of a call, after its end."""

    line: Mapping[str, object]  # what the request log says of it
    request_id: str  # of its HTTP request
    call_id: str  # the `id` of its answer
    model: str
    service_class: ServiceClass
    end: str  # as in the request log
    arrived_unix_s: float
    ended_s: float  # on time.monotonic()
    ttft_s: float | None  # from its arrival here; None if no token came
    tpot_s: float | None  # mean time of a token after the first; None for fewer than two
    slo: Slo | None  # its own targets or its model's
    trace_id: str = ""  # of its caller's trace context; empty without one

    def is_within_targets(self) -> bool | None:
        """Return whether both targets were kept; None without any, or if its client left."""
        if self.slo is None or self.end == FinishReason.ABORT:
            return None
        if self.ttft_s is None or self.end == FinishReason.ERROR:
            return False
        tpot_s = 0.0 if self.tpot_s is None else self.tpot_s
        return self.ttft_s <= self.slo.ttft_s and tpot_s <= self.slo.tpot_s


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and 99th percentile in seconds; None without a value."""

    p50_s: float | None = None
    p99_s: float | None = None

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        if not values:
            return cls()
        ordered = sorted(values)
        return cls(_quantile(ordered, 0.5), _quantile(ordered, 0.99))


@dataclass(frozen=True, slots=True)
class RecentFigures:
    """The interactive requests of a model that ended within the last `WINDOW_S` seconds."""

    num_ended: int = 0  # without those that were refused
    num_failed: int = 0  # of these, by an error
    num_refused: int = 0  # of both classes, because a queue was full or no unit took them
    ttft: Spread = Spread()
    tpot: Spread = Spread()
    attainment: float | None = None  # share within their targets; None if none has any


class RecentRequests:
    """The last `max_kept` requests that ended, for the event loop that answers them."""

    def __init__(self, max_kept: int = MAX_KEPT) -> None:
        # by class: lines of batch jobs would drive out all others
        self._ended = {each: deque[EndedRequest](maxlen=max_kept) for each in ServiceClass}
        # When a full queue refused requests, of which model and how many
        self._refusals: deque[tuple[float, str, int]] = deque(maxlen=max_kept)

    def add(self, ended: EndedRequest) -> None:
        self._ended[ended.service_class].append(ended)

    def refuse(self, model: str, num_requests: int, now_s: float) -> None:
        """Note requests that were refused before they became any."""
        self._refusals.append((now_s, model, num_requests))

    def find(self, request_id: str) -> list[EndedRequest]:
        """Return the choices of a call, by the id of its request or of its answer; of all calls of
        a trace, by its id."""
        if not request_id:
            return []
        kept = chain.from_iterable(self._ended.values())
        return [
            each for each in kept if request_id in (each.request_id, each.call_id, each.trace_id)
        ]

    def refused(self, since_s: float) -> dict[str, int]:
        """Return how many requests a full queue has refused since then, by model; those that were
        refused unread are of no model, ''."""
        found: Counter[str] = Counter()
        for at_s, model, num_requests in reversed(self._refusals):
            if at_s < since_s:
                break
            found[model] += num_requests
        return dict(found)

    def figures(self, now_s: float) -> dict[str, RecentFigures]:
        """Return the figures of each model with requests in the window."""
        first_s = now_s - WINDOW_S
        num_refused = Counter(self.refused(first_s))
        ended: dict[str, list[EndedRequest]] = defaultdict(list)
        for service_class, kept in self._ended.items():
            for each in reversed(kept):
                if each.ended_s < first_s:
                    break
                if each.end == REJECTED:
                    num_refused[each.model] += 1
                elif service_class is ServiceClass.INTERACTIVE:
                    ended[each.model].append(each)
        models = ended.keys() | num_refused.keys()
        return {model: _figures(ended.get(model, ()), num_refused[model]) for model in models}


def _figures(ended: Sequence[EndedRequest], num_refused: int) -> RecentFigures:
    within = map(EndedRequest.is_within_targets, ended)
    judged = [each for each in within if each is not None]
    return RecentFigures(
        num_ended=len(ended),
        num_failed=sum(each.end == FinishReason.ERROR for each in ended),
        num_refused=num_refused,
        ttft=Spread.of([each.ttft_s for each in ended if each.ttft_s is not None]),
        tpot=Spread.of([each.tpot_s for each in ended if each.tpot_s is not None]),
        attainment=sum(judged) / len(judged) if judged else None,
    )


def _quantile(ordered: Sequence[float], share: float) -> float:
    """Return the nearest-rank quantile of ascending values."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
