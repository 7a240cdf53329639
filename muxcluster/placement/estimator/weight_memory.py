"""Models that take turns in a unit's memory: how often each is woken, and what its requests wait.

Requests are Poisson; the model that was asked for longest ago is parked first. Which models are
resident is then what an LRU cache holds, by Che's approximation: a model stays for the time T after
its last request, the same for all, at which the expected bytes fill the room (Che, Tung and Wang,
2002; for objects of different sizes, Fricker, Robert and Roberts, 2012).

Where several units have the same models, a request goes to the one that has its model's weights, so
each model is on one of them at a time: their memory is one cache, in which more is resident.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from muxcluster.core.residency import DRAIN_WAKES, STAY_WAKES
from muxcluster.placement.estimator.queueing import FULLEST, Quantiles

_BISECTIONS = 60
_LONGEST_S = 1e9  # models that are asked for less often are as good as never resident
_TAILS = (0.5, 0.05)  # of the median and of the 95th percentile
_MOST_EXPONENT = 50.0
_ROUNDS = 6  # until wakes and the memory that is in use agree


@dataclass(frozen=True, slots=True)
class WeightMemory:
    """The memory in which models of a unit take turns.

    Models are in the order of the unit's tenants. Rates and wakes are those of one unit.
    """

    num_at_once: int  # so many of them are resident at once, at least, whichever they are
    resident_bytes: int  # for all models of the unit, those that are always resident included
    model_bytes: tuple[int, ...]  # of each while it is resident; 0 for one that always is
    wake_s: tuple[float, ...]  # seconds to wake each; 0 for one that is always resident
    always_bytes: int = 0  # the part of resident_bytes of models that are always resident
    num_units: int = 1  # units with the same models, this one included, that share the requests

    @property
    def turn_bytes(self) -> int:
        """Bytes in which models take turns."""
        return self.resident_bytes - self.always_bytes

    @property
    def used_bytes(self) -> float:
        """Those that hold weights: where a smaller model takes the place of a larger one, half of
        the difference is empty, on average."""
        sizes = [size for size in self.model_bytes if size]
        return max(max(sizes), self.turn_bytes - (max(sizes) - min(sizes)) / 2)

    @property
    def is_one_cache(self) -> bool:
        """False where memory of several units is not like that of one: who takes most of a unit's
        parks all others there, also those that are asked for all the time."""
        sizes = [size for size in self.model_bytes if size]
        return 2 * max(sizes) <= self.turn_bytes or max(sizes) < 2 * min(sizes)

    def wakes_per_s(self, rates: Sequence[float]) -> tuple[float, ...]:
        """Return the wakes/s of each model at these requests/s.

        A model is absent for the mean time to its next request, and is then woken. One move runs at
        a time: a unit that would move more than that lets models stay for longer.
        """
        stay_s = self._stay_s(rates)
        found = [
            self._cycles_per_s(rate * self.num_units, wake_s, stay_s) / self.num_units
            if size
            else 0.0
            for rate, size, wake_s in zip(rates, self.model_bytes, self.wake_s, strict=True)
        ]
        return self._within_time(found)

    def _within_time(self, wakes: Sequence[float]) -> tuple[float, ...]:
        moving = sum(each * wake_s for each, wake_s in zip(wakes, self.wake_s, strict=True))
        most = min(1.0, FULLEST / moving) if moving > 0 else 1.0
        return tuple(each * most for each in wakes)

    def wakes_with_returns(
        self, rates: Sequence[float], spans_s: Sequence[float]
    ) -> tuple[float, ...]:
        """Return the wakes/s of each model, those after its requests were interrupted included.

        A wake that finds all memory in use parks a model with requests, which is woken again: at
        most once for each of its requests.
        spans_s: as in `waits`.
        """
        first = found = self.wakes_per_s(rates)
        whole = self._of_all_units(rates)
        for _ in range(_ROUNDS):
            room = self._room_wait(whole, spans_s, self._of_all_units(found))
            more = 1 / (1 - min(FULLEST, room.chance))
            again = [min(rate, each * more) for rate, each in zip(rates, first, strict=True)]
            found = self._within_time(again)
        return found

    def awake(self, rates: Sequence[float]) -> tuple[float, ...]:
        """Return the part of the time in which each model is resident here, at these requests/s."""
        stay_s = self._stay_s(rates)
        return tuple(
            self._resident(rate * self.num_units, stay_s) / self.num_units if size else 1.0
            for rate, size in zip(rates, self.model_bytes, strict=True)
        )

    def loads(self, rates: Sequence[float], busy: Sequence[float]) -> tuple[float, ...]:
        """Return each model's part of the load of the memory: the part of the time in which it
        computes or is woken, times its bytes.

        busy: the part of the time in which each has jobs at the largest batches.
        """
        room = self.turn_bytes
        return tuple(
            size * (min(1.0, part) + wakes * wake_s) / room
            for size, part, wakes, wake_s in zip(
                self.model_bytes, busy, self.wakes_per_s(rates), self.wake_s, strict=True
            )
        )

    def waits(self, rates: Sequence[float], spans_s: Sequence[float]) -> tuple[Quantiles, ...]:
        """Return how much later the first tokens of each model come.

        spans_s: seconds that a request of each takes once its model is resident.
        """
        wakes, queue_s, room = self._moving(rates, spans_s)
        rates = self._of_all_units(rates)
        return tuple(
            Quantiles(*(_late_s(tail, wake_s + queue_s, rate, each, room) for tail in _TAILS))
            if each > 0
            else Quantiles(0.0, 0.0)
            for rate, wake_s, each in zip(rates, self.wake_s, wakes, strict=True)
        )

    def in_time(
        self, rates: Sequence[float], spans_s: Sequence[float], targets_s: Sequence[float]
    ) -> tuple[float, ...]:
        """Return the part of each model's requests that wait for weights no longer than targets.

        spans_s: as in `waits`.
        """
        wakes, queue_s, room = self._moving(rates, spans_s)
        rates = self._of_all_units(rates)
        return tuple(
            1 - _late(target_s, wake_s + queue_s, rate, each, room) if each > 0 else 1.0
            for target_s, wake_s, rate, each in zip(
                targets_s, self.wake_s, rates, wakes, strict=True
            )
        )

    def _moving(
        self, rates: Sequence[float], spans_s: Sequence[float]
    ) -> tuple[tuple[float, ...], float, "_RoomWait"]:
        """Return the wakes/s of all units, the wait for other wakes, and that for memory."""
        wakes = self.wakes_with_returns(rates, spans_s)
        whole = self._of_all_units(wakes)
        room = self._room_wait(self._of_all_units(rates), spans_s, whole)
        return whole, self._queue_s(wakes), room

    def _of_all_units(self, each: Sequence[float]) -> tuple[float, ...]:
        return tuple(per_s * self.num_units for per_s in each)

    def _stay_s(self, rates: Sequence[float]) -> float:
        """Return Che's T by bisection."""
        room, rates = self.used_bytes * self.num_units, self._of_all_units(rates)
        if room >= sum(self.model_bytes):
            return math.inf

        def taken(stay_s: float) -> float:
            return sum(
                size * self._resident(rate, stay_s)
                for rate, size in zip(rates, self.model_bytes, strict=True)
            )

        low, high = 0.0, 1.0
        while taken(high) < room and high < _LONGEST_S:
            low, high = high, 2 * high
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            low, high = (middle, high) if taken(middle) < room else (low, middle)
        return high

    @staticmethod
    def _resident(rate: float, stay_s: float) -> float:
        """Return the part of the time in which a model has been asked for within `stay_s`."""
        return -math.expm1(-rate * stay_s) if rate > 0 else 0.0

    @staticmethod
    def _cycles_per_s(rate: float, wake_s: float, stay_s: float) -> float:
        """A cycle: resident until no request came for `stay_s`, absent, woken."""
        if rate <= 0 or math.isinf(stay_s):
            return 0.0
        between_s = math.exp(min(_MOST_EXPONENT, rate * stay_s)) / rate
        return 1 / (between_s + wake_s)

    def _queue_s(self, wakes: Sequence[float]) -> float:
        """Mean wait for other models' wakes, of which one is under way at a time
        (Pollaczek-Khinchine)."""
        load = sum(each * wake_s for each, wake_s in zip(wakes, self.wake_s, strict=True))
        squares = sum(each * wake_s**2 for each, wake_s in zip(wakes, self.wake_s, strict=True))
        return squares / (2 * (1 - min(FULLEST, load)))

    def _room_wait(
        self, rates: Sequence[float], spans_s: Sequence[float], wakes: Sequence[float]
    ) -> "_RoomWait":
        """Return the wait for memory whose model has no requests, as for a server of M/G/c
        (probability: Sakasegawa 1977); at most until every other model had a turn.

        Who has it gives it away when its requests end, or are interrupted.
        """
        room = self.turn_bytes * self.num_units
        used = rotation_s = busy_s = places = 0.0
        others = 1 - 1 / sum(size > 0 for size in self.model_bytes)
        for rate, span_s, size, each, wake_s in zip(
            rates, spans_s, self.model_bytes, wakes, self.wake_s, strict=True
        ):
            part, drain_s = size / room, min(span_s, DRAIN_WAKES * wake_s)
            in_use = part * min(1.0, -math.expm1(-rate * span_s) + each * wake_s)
            used += in_use
            busy_s += in_use * drain_s
            places += in_use * part
            rotation_s += others * part * ((1 + STAY_WAKES) * wake_s + drain_s)
        if used <= 0:
            return _RoomWait(0.0, 0.0, 0.0)
        load = min(FULLEST, used)
        num_at_once = max(1.0, used / places)  # of those that are in use
        chance = math.pow(load, math.sqrt(2 * (num_at_once + 1)) - 1)
        return _RoomWait(chance, busy_s / used / (num_at_once * (1 - load)), rotation_s)


@dataclass(frozen=True, slots=True)
class _RoomWait:
    chance: float  # that a wake has to wait for memory
    mean_s: float  # of those that wait; exponential
    most_s: float  # a wake that waits comes anywhere in the turns of the others

    def beyond(self, seconds: float) -> float:
        """Return the part of all wakes that wait for longer."""
        if seconds >= self.most_s or not self.mean_s:
            return 0.0
        return min(1 - seconds / self.most_s, self.chance * math.exp(-seconds / self.mean_s))

    def at(self, tail: float) -> float:
        """Return the wait that the part `tail` of all wakes exceeds."""
        if self.chance <= tail:
            return 0.0
        return min(self.most_s * (1 - tail), self.mean_s * math.log(self.chance / tail))


def _late(
    target_s: float, whole_s: float, rate: float, wakes_per_s: float, room: _RoomWait
) -> float:
    """Return the part of a model's requests that wait longer than `target_s`; the others as in
    `_late_s`."""
    more_s = target_s - whole_s
    if more_s < 0:
        return min(1.0, wakes_per_s * (1 / rate - more_s))
    found_absent = min(1.0, wakes_per_s * (1 / rate + whole_s))
    return found_absent * room.beyond(more_s)


def _late_s(tail: float, whole_s: float, rate: float, wakes_per_s: float, room: _RoomWait) -> float:
    """Return `late_s` with the wait for memory."""
    absent_s = whole_s + room.chance * min(room.most_s, room.mean_s)
    late = min(1.0, wakes_per_s * (1 / rate + absent_s))  # part that finds the model absent
    waiting_s = room.at(tail / late)
    return max(late_s(tail, whole_s, rate, wakes_per_s), whole_s + waiting_s if waiting_s else 0.0)


def late_s(tail: float, whole_s: float, rate: float, wakes_per_s: float) -> float:
    """Return the wait that the part `tail` of a model's requests exceeds.

    whole_s: wait of a request that begins a wake; those that come while it is under way wait for
    the rest of it, so P(wait > x) = wakes / rate x (1 + rate x (whole - x)).
    """
    return max(0.0, min(whole_s, whole_s + 1 / rate - tail / wakes_per_s))
