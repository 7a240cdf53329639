"""Who may be in a job of a packing: everybody, or one class of service only."""

from typing import Protocol

import numpy as np

from muxcluster.core.request import ServiceClass
from muxcluster.scheduling.state.live import LiveRequest
from muxcluster.scheduling.state.model import ModelState
from muxcluster.scheduling.state.slots import Slots


class Candidates(Protocol):
    """The idle sequences and waiting requests of a model that a packing may take."""

    def prefilling(self, model: ModelState) -> Slots:
        """With prompt left to compute, most senior first; not to be written."""
        ...

    def decoding(self, model: ModelState) -> Slots:
        """Whose next token can be decoded, ascending by slot; not to be written."""
        ...

    def head(self, model: ModelState) -> LiveRequest | None:
        """Who is admitted next."""
        ...


class Everybody:
    """All there are."""

    def prefilling(self, model: ModelState) -> Slots:
        """With prompt left to compute, most senior first."""
        return model.slots.idle_prefilling()

    def decoding(self, model: ModelState) -> Slots:
        """Whose next token can be decoded."""
        return model.slots.idle_decoding()

    def head(self, model: ModelState) -> LiveRequest | None:
        """The most senior request that waits."""
        return model.waiting.head


class OnlyClass:
    """Those of one class."""

    def __init__(self, service_class: ServiceClass) -> None:
        self._class = service_class

    def prefilling(self, model: ModelState) -> Slots:
        """With prompt left to compute, most senior first."""
        return self._mine(model, model.slots.idle_prefilling())

    def decoding(self, model: ModelState) -> Slots:
        """Whose next token can be decoded."""
        return self._mine(model, model.slots.idle_decoding())

    def head(self, model: ModelState) -> LiveRequest | None:
        """The most senior of the class that waits."""
        return model.waiting.by_class[self._class].head

    def _mine(self, model: ModelState, slots: Slots) -> Slots:
        at = model.slots.at
        classes = [at(slot).request.service_class for slot in slots.tolist()]
        return slots[np.array([mine is self._class for mine in classes], dtype=np.bool_)]
