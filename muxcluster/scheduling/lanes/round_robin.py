"""Round robin: prefill and decode on SM partitions in strict rotation, without quotas.

The ablation baseline of MuxServe §5.4: spatial sharing, no adaptive batch scheduling.
"""

from collections.abc import Sequence

from muxcluster.core.job import Job, Phase
from muxcluster.scheduling.lanes.view import LaneView
from muxcluster.scheduling.shares import Place
from muxcluster.scheduling.state.model import ModelState

_ORDER = (Phase.PREFILL, Phase.DECODE)


class RoundRobinLane:
    """One prefill job and one decode job at a time, each phase rotating over the models.

    On a single worker the phases alternate. Nothing is urgent and nothing holds anything back.
    """

    uses_quotas = False
    phases = frozenset(_ORDER)

    def __init__(self) -> None:
        self._next = dict.fromkeys(_ORDER, 0)
        self._last_phase = Phase.DECODE

    def next_jobs(self, view: LaneView, now: float) -> list[Job]:
        """A job of each phase that has none running, the phase that waited longer first."""
        phases = _ORDER if self._last_phase is Phase.DECODE else _ORDER[::-1]
        jobs: list[Job] = []
        for phase in phases:
            if not view.shares.has_running(phase):
                jobs += self._launch(view, phase, now)
        return jobs

    def turns(self, view: LaneView) -> list[ModelState]:
        """Nobody: a waiting model has other claims than its turn."""
        return []

    def repeats(self, view: LaneView, jobs: Sequence[Job]) -> bool:
        """True where prompts wait for nothing but the prefill that runs, and the place stays."""
        shares = view.shares
        is_prefilling = shares.has_running(Phase.PREFILL)
        if self._last_phase is not Phase.DECODE:
            return False
        if not is_prefilling and any(map(view.has_prefill_work, view.models)):
            return False

        def place() -> Place | None:
            if is_prefilling:
                return shares.rest(Phase.DECODE)
            return shares.beside(Phase.DECODE, Phase.PREFILL)

        return all(shares.would_repeat(job, place) for job in jobs)

    def may_follow(self, view: LaneView, job: Job) -> bool:
        """Never: the rotation is strict, and who is next in it is settled when a job ends."""
        return False

    def _launch(self, view: LaneView, phase: Phase, now: float) -> list[Job]:
        """The next model in the rotation that has work which memory lets run."""
        other = Phase.DECODE if phase is Phase.PREFILL else Phase.PREFILL
        shares = view.shares
        place = shares.rest(phase) if shares.running else shares.beside(phase, other)
        if place is None:
            return []
        has_work = view.has_prefill_work if phase is Phase.PREFILL else view.has_decode_work
        first, num_models = self._next[phase], len(view.models)
        for step in range(num_models):
            index = (first + step) % num_models
            model = view.models[index]
            if has_work(model) and (job := view.launch(model, phase, place, now)) is not None:
                self._next[phase] = (index + 1) % num_models
                self._last_phase = phase
                return [job]
        return []
