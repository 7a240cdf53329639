"""A floor for batch work: however busy the interactive class is, it gets a row now and then."""

from muxcluster.scheduling.state.model import ModelState


class Ageing:
    """How long the batch work of each model has been waiting for a job."""

    def __init__(self, ageing_s: float) -> None:
        """ageing_s: after so many seconds a batch row runs whatever the targets say, and after
        twice as many no interactive request is admitted before batch work found memory.
        """
        self._ageing_s = ageing_s
        self._since_s: dict[str, float] = {}

    def note(self, model: ModelState, num_batch: int, now: float) -> None:
        """A job of the model starts with so many batch rows, or finds nothing to run."""
        name = model.name
        if num_batch or not model.has_batch_work:
            self._since_s.pop(name, None)
        else:
            self._since_s.setdefault(name, now)

    def is_overdue(self, model: ModelState, now: float) -> bool:
        """True where batch work must be in the next job."""
        return now - self._since_s.get(model.name, now) >= self._ageing_s

    def is_starved(self, model: ModelState, now: float) -> bool:
        """True where that has not helped, because memory is short."""
        return now - self._since_s.get(model.name, now) >= 2 * self._ageing_s
