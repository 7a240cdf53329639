"""Changes of units and of their models' weights, as they were seen."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

MAX_KEPT = 200

# (unit, model or "", what): what it is now. What: "state" and "sharing" of a unit, "weights" and
# "order" of a model.
Seen = Mapping[tuple[str, str, str], str]


@dataclass(frozen=True, slots=True)
class Event:
    """One value that changed."""

    time_s: float  # Unix time
    unit: str
    model: str  # empty: of the unit itself
    what: str
    before: str | None  # None: the unit is new
    after: str | None  # None: the unit is gone


class EventLog:
    """The last `max_kept` changes."""

    def __init__(self, max_kept: int = MAX_KEPT) -> None:
        self._seen: Seen | None = None
        self._events: deque[Event] = deque(maxlen=max_kept)

    def note(self, seen: Seen, time_s: float) -> None:
        """Compare with what was seen before. The first call finds no change.

        Of a unit that comes or goes its state alone is told, of a model that comes or goes nothing.
        """
        before, self._seen = self._seen, dict(seen)
        if before is None:
            return
        for key in sorted(before.keys() | seen.keys()):
            old, new = before.get(key), seen.get(key)
            unit, model, what = key
            is_whole = old is None or new is None
            if old != new and (what == "state" or not is_whole):
                self._events.append(Event(time_s, unit, model, what, old, new))

    def latest(self) -> list[Event]:
        """Return the changes, newest first."""
        return list(reversed(self._events))
