"""KV that the open requests of a running batch job hold now, and at their peak."""

from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from muxcluster.offline.blend.lengths import OutputLengths
from muxcluster.offline.blend.scan import End
from muxcluster.offline.feed.prefixes import LivePrefixes
from muxcluster.offline.prefix.tree import PrefixTree

# Means of the four quarters of an exponential distribution of mean 1: the remaining time of a
# request of unknown length takes each of these values with equal chance.
_LIVES = np.array((0.13, 0.47, 0.98, 2.08))


def peak_tokens(
    held: NDArray[np.float64], left: NDArray[np.float64], is_sure: NDArray[np.bool_]
) -> float:
    """Return the most tokens that these requests will hold together, if no others start.

    Each gets a token a step and frees all when it ends. held: float64 [n], tokens that each holds.
    left: float64 [n], output tokens to come. is_sure: bool [n], True where `left` is known; else it
    is the mean of an exponential distribution.
    """
    if not len(held):
        return 0.0
    ends = np.concatenate((left[is_sure], np.outer(left[~is_sure], _LIVES).ravel()))
    count = len(_LIVES)
    weights = np.concatenate(
        (
            np.ones(np.count_nonzero(is_sure)),
            np.full(len(ends) - np.count_nonzero(is_sure), 1 / count),
        )
    )
    amounts = np.concatenate((held[is_sure], np.repeat(held[~is_sure], count)))
    latest = np.argsort(-ends, kind="stable")
    alive, kept = np.cumsum(weights[latest]), np.cumsum((weights * amounts)[latest])
    return float(max(held.sum(), (kept + alive * ends[latest]).max()))


_LEAST_TOKENS = 16  # shorter outputs are not timed: when they end says little about the rate
_MEMORY = 0.9  # weight of earlier requests, at every request that ends


class TokenClock:
    """Counts the output tokens that a request gets over time; all requests decode alike.

    Neither unit nor engine reports how far each request is, so the rate comes from ended ones.
    """

    def __init__(self) -> None:
        self.tokens = 0.0  # of a request that has decoded since the beginning
        self.now = 0.0
        self._tokens, self._seconds = 0.0, 0.0

    def advance(self, now: float) -> None:
        """Set the time, seconds, which never goes back."""
        if self._seconds > 0:
            self.tokens += (now - self.now) * self._tokens / self._seconds
        self.now = now

    def ended(self, tokens: int, start_s: float) -> None:
        """Learn from a request that got its first token at `start_s` and ended with `tokens`."""
        if tokens >= _LEAST_TOKENS and self.now > start_s:
            self._tokens = self._tokens * _MEMORY + tokens
            self._seconds = self._seconds * _MEMORY + self.now - start_s


WINDOW_S = 30.0  # a burst of interactive load within this time finds the memory of the last one


class WorkingSetForecast:
    """The largest working set of the last `window_s` seconds.

    A rise counts at once, a fall when the window has passed: memory that batch requests took
    meanwhile would soon be taken back from them.
    """

    def __init__(self, window_s: float = WINDOW_S) -> None:
        self._window_s = window_s
        self._peaks: deque[tuple[float, float]] = deque()

    def expect(self, now: float, held_bytes: float) -> float:
        """Return bytes to reserve. held_bytes: held at `now` (seconds, never going back)."""
        peaks = self._peaks
        while peaks and peaks[-1][1] <= held_bytes:
            peaks.pop()
        peaks.append((now, held_bytes))
        while peaks[0][0] < now - self._window_s:
            peaks.popleft()
        return peaks[0][1]


# The peak is computed again after so many tokens, or when this share of the requests has ended.
_STALE_TOKENS, _STALE_SHARE = 128, 1 / 16


@dataclass(slots=True)
class _Request:
    """An open request."""

    end: End
    own_bytes: int  # expected mean over its life
    backlog: int  # prompt tokens not computed yet, as far as is known
    begun: tuple[float, float] | None = None  # seconds and tokens of the clock at its first token


class HeldMemory:
    """KV of open requests by place. What they share is counted once, for the first of them.

    Requests of the compute-bound end are short and count with their mean. Those of the memory-bound
    end are few and long and count with their common peak: those begun together grow together, and
    one that outlives its estimate goes on growing.
    """

    def __init__(self, tree: PrefixTree, prefixes: LivePrefixes, kv_bytes: int) -> None:
        self._prefixes = prefixes
        self._kv_bytes = kv_bytes
        self._edge_tokens = tree.edge_tokens.tolist()
        self._own_tokens = tree.lengths - tree.depth[tree.leaf_node]
        self._open: dict[int, _Request] = {}
        self._node_ends: dict[int, End] = {}
        self._held = {End.COMPUTE: 0, End.MEMORY: 0}
        self._clock = TokenClock()
        self._long: dict[int, _Request] = {}
        self._now_bytes = self._peak_bytes = 0.0
        self._is_stale, self._stale_at, self._num_gone = False, 0.0, 0
        self.backlog = 0  # prompt tokens that wait to be computed

    def expect(
        self, outputs: OutputLengths, known: NDArray[np.float64], factors: NDArray[np.float64]
    ) -> None:
        """Use new length estimates.

        known: float64 [n], NaN where not known. factors: float64 [n], 1 or more, by which a request
        of unknown length may exceed its estimate. On average over its life a request holds half of
        its output, and a long one lives longer.
        """
        self._longest, self._known = outputs.mean * factors, known
        tokens = self._own_tokens + outputs.square / outputs.mean / 2
        self._own_bytes = np.ceil(tokens * self._kv_bytes).astype(np.int64)
        self._is_stale = True

    def advance(self, now: float) -> None:
        """Set the time, seconds, which never goes back."""
        self._clock.advance(now)
        self._is_stale = self._is_stale or self._clock.tokens >= self._stale_at

    @property
    def compute_bytes(self) -> int:
        """Return the bytes of the compute-bound end's requests."""
        return self._held[End.COMPUTE]

    @property
    def memory_bytes(self) -> float:
        """Return about the bytes of the memory-bound end's requests now."""
        self._update_peak()
        return self._held[End.MEMORY] + self._now_bytes

    @property
    def memory_peak(self) -> float:
        """Return the most bytes that the same will hold if no others follow."""
        self._update_peak()
        return self._held[End.MEMORY] + self._peak_bytes

    def put(self, place: int, end: End) -> None:
        """Count a request that runs from now on."""
        request = _Request(end, int(self._own_bytes[place]), int(self._own_tokens[place]))
        for node in self._prefixes.open(place):
            self._node_ends[node] = end
            self._held[end] += self._edge_tokens[node] * self._kv_bytes
            request.backlog += self._edge_tokens[node]
        self._open[place] = request
        self._count(place, request)
        self.backlog += request.backlog

    def started(self, place: int) -> None:
        """Note that a request's prompt is computed."""
        request = self._open[place]
        self.backlog -= request.backlog
        request.backlog = 0
        request.begun = request.begun or (self._clock.now, self._clock.tokens)

    def ended(self, place: int, output_tokens: int) -> None:
        """Withdraw a request that ended with `output_tokens`."""
        begun = self._open[place].begun
        if begun is not None:
            self._clock.ended(output_tokens, begun[0])
        self.withdraw(place)

    def withdraw(self, place: int) -> End:
        """Stop counting a request; return the end that it was of."""
        request = self._open.pop(place)
        self._discount(place, request)
        for node in self._prefixes.close(place):
            end = self._node_ends.pop(node)
            self._held[end] -= self._edge_tokens[node] * self._kv_bytes
        self.backlog -= request.backlog
        return request.end

    def output_tokens(self) -> dict[int, float]:
        """Return about how many tokens each decoding request got so far, by place."""
        tokens = self._clock.tokens
        begun = {place: request.begun for place, request in self._open.items()}
        return {place: 1 + tokens - each[1] for place, each in begun.items() if each is not None}

    def move(self, place: int, end: End) -> None:
        """Count a request for another end from now on."""
        request = self._open[place]
        self._discount(place, request)
        request.end, request.own_bytes = end, int(self._own_bytes[place])
        self._count(place, request)

    def _count(self, place: int, request: _Request) -> None:
        if request.end is End.COMPUTE:
            self._held[End.COMPUTE] += request.own_bytes
        else:
            self._long[place], self._is_stale = request, True

    def _discount(self, place: int, request: _Request) -> None:
        if request.end is End.COMPUTE:
            self._held[End.COMPUTE] -= request.own_bytes
        else:
            del self._long[place]
            self._num_gone += 1
            if self._num_gone >= _STALE_SHARE * len(self._long):
                self._is_stale = True

    def _update_peak(self) -> None:
        if not self._is_stale:
            return
        tokens, places = self._clock.tokens, list(self._long)
        begun = (each.begun for each in self._long.values())
        got = np.array([tokens - each[1] if each is not None else 0.0 for each in begun])
        known, longest = self._known[places], self._longest[places]
        is_sure = ~np.isnan(known)
        got = np.where(is_sure, np.minimum(got, known), got)
        left = np.where(is_sure, known - got, longest)
        held = self._own_tokens[places] + got
        self._now_bytes = self._kv_bytes * float(held.sum())
        self._peak_bytes = self._kv_bytes * peak_tokens(held, left, is_sure)
        self._is_stale, self._stale_at, self._num_gone = False, tokens + _STALE_TOKENS, 0
