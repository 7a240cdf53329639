"""Time that batch work is owed where interactive requests would take nearly all of it."""

from muxcluster.scheduling.state.model import ModelState

_STARVED = 0.9  # of the most that may be owed: time was offered, so memory is what is short


class BatchClaims:
    """Seconds of jobs owed to the batch work of each model: its guaranteed share of the time.

    While batch work waits or runs, the claim grows by the share of the time that passes, and every
    job lowers it by the seconds that batch rows make the job longer. It stays within what the share
    is of `period_s`, either way: batch work that had more than its share for as long claims nothing
    for the next `period_s`, so bursts of interactive requests have the unit to themselves.
    """

    def __init__(self, share: float, period_s: float, num_models: int) -> None:
        """share: of the unit's time, 0 to 1, divided evenly among its models."""
        self._share = share / max(1, num_models)
        self._most_s = self._share * period_s
        self._owed_s: dict[str, float] = {}
        self._last_s: dict[str, float] = {}

    def note(self, model: ModelState, batch_s: float, now: float) -> None:
        """Note that a job starts which batch rows make `batch_s` longer."""
        if self._share and model.has_batch_work:
            owed_s = self._at(model, now) - batch_s
            self._owed_s[model.name] = max(-self._most_s, owed_s)
            self._last_s[model.name] = now
        else:
            self._last_s.pop(model.name, None)

    def seconds(self, model: ModelState, now: float) -> float:
        """Return the seconds by which batch rows may make a job longer whatever the targets say."""
        return max(0.0, self._at(model, now)) if self._share else 0.0

    def is_starved(self, model: ModelState, now: float) -> bool:
        """Return True where time that was offered found no use, because memory is short."""
        return self._share > 0 and self._at(model, now) >= _STARVED * self._most_s

    def _at(self, model: ModelState, now: float) -> float:
        name = model.name
        grown_s = self._share * (now - self._last_s.get(name, now))
        return min(self._most_s, self._owed_s.get(name, 0.0) + grown_s)
