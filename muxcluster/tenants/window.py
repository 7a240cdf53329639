"""A sliding window: how much was admitted in the last seconds, exactly."""

from collections import deque
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Admission:
    """An amount that was admitted at a time."""

    time_s: float
    amount: int
    is_inside: bool = True  # False: it has left the window


class SlidingWindow:
    """Sum of what was admitted in the last `length_s` seconds.

    It keeps each admission until that leaves the window. Times must not fall.
    """

    def __init__(self, length_s: float) -> None:
        self._length_s = length_s
        self._inside: deque[Admission] = deque()
        self._total = 0

    def total(self, now_s: float) -> int:
        """Return the sum over (now_s - length_s, now_s]."""
        while self._inside and self._inside[0].time_s <= now_s - self._length_s:
            oldest = self._inside.popleft()
            oldest.is_inside = False
            self._total -= oldest.amount
        return self._total

    def admit(self, amount: int, now_s: float) -> Admission:
        """Add an amount; it may be corrected later."""
        self.total(now_s)  # a key without this limit asks for no total: what is old goes here
        admission = Admission(now_s, amount)
        self._inside.append(admission)
        self._total += amount
        return admission

    def correct(self, admission: Admission, amount: int) -> None:
        """Make `amount` the amount of an admission; without effect after it has left."""
        if admission.is_inside:
            self._total += amount - admission.amount
            admission.amount = amount

    def wait_s(self, amount: int, now_s: float) -> float:
        """Return the seconds until at least `amount` of what is inside has left."""
        left = 0
        for admission in self._inside:
            left += admission.amount
            if left >= amount:
                return admission.time_s + self._length_s - now_s
        return self._length_s

    def reset_s(self, now_s: float) -> float:
        """Return the seconds until nothing is inside, if nothing else is admitted."""
        return self._inside[-1].time_s + self._length_s - now_s if self._inside else 0.0

    def check(self) -> None:
        """Raise AssertionError unless the sum is that of the admissions, which are in order."""
        assert self._total == sum(each.amount for each in self._inside)
        assert all(each.is_inside for each in self._inside)
        times = [each.time_s for each in self._inside]
        assert times == sorted(times)
