"""Classes take turns: interactive and batch requests never share a job (a baseline of BROS §7)."""

import numpy as np

from muxcluster.core.job import Job, Phase
from muxcluster.core.request import ServiceClass
from muxcluster.scheduling.memory.admission import Memory
from muxcluster.scheduling.packing.batch import Batch, Limits, Turn
from muxcluster.scheduling.packing.priority import PriorityPacking
from muxcluster.scheduling.state.model import ModelState
from muxcluster.scheduling.steptime.model import StepTimes

_NOBODY = np.empty(0, dtype=np.int32)
_OTHER = {
    ServiceClass.INTERACTIVE: ServiceClass.BATCH,
    ServiceClass.BATCH: ServiceClass.INTERACTIVE,
}


class RoundRobinPacking:
    """After a job of one class of a model comes one of the other, each in order of arrival.

    A class that has nothing to run is skipped. One that could decode but has nothing to prefill
    leaves no prefill to the other: its turn is the decode that the lane asks for next.
    """

    is_class_blind = True
    by_deadline = False
    may_lend = False
    repeats = True
    predicts = False

    def __init__(self, memory: Memory, limits: Limits, times: StepTimes) -> None:
        self._memory = memory
        self._packings = {
            service: PriorityPacking(memory, limits, times, service) for service in ServiceClass
        }
        self._last: dict[str, ServiceClass] = {}

    def may_prefill(self, model: ModelState) -> bool:
        """Return True where the class in turn has prompts, or has nothing and the other has."""
        for service in self._turns(model):
            if self._packings[service].may_prefill(model):
                return True
            if self._may_decode(model, service):
                return False
        return False

    def observe(self, job: Job, seconds: float, num_beside: int) -> None:
        """Learn nothing: no step time is predicted."""

    def decodes_all(self, model: ModelState) -> bool:
        """Return True: where the other class waits for its turn, it shows as work to decode."""
        return True

    def pack(self, model: ModelState, phase: Phase, turn: Turn) -> Batch:
        """Rows of the class in turn, of the other where it has none that memory lets run."""
        for service in self._turns(model):
            batch = self._packings[service].pack(model, phase, turn)
            if len(batch):
                self._last[model.name] = service
                return batch
            if phase is Phase.PREFILL and self._may_decode(model, service):
                break
        return Batch(_NOBODY, _NOBODY)

    def _turns(self, model: ModelState) -> tuple[ServiceClass, ServiceClass]:
        """The class in turn, then the other."""
        last = self._last.get(model.name, ServiceClass.BATCH)
        return _OTHER[last], last

    def _may_decode(self, model: ModelState, service: ServiceClass) -> bool:
        """Return True where a decode job of the class finds blocks, at worst by preemption."""
        # Its most senior row does, unless it is itself the next victim.
        table = model.running
        rows = self._packings[service].decoding(model)
        if len(rows) == 0:
            return False
        if self._memory.has_column(model):
            return True
        return bool(table.seniority[rows].min() < table.seniority[table.idle()].max())
