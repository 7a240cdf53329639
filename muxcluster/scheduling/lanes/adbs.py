"""Adaptive batch scheduling: prefill first, decodes of any model beside it (MuxServe, Alg. 3)."""

from collections.abc import Sequence
from functools import partial

from muxcluster.core.job import Job, Phase
from muxcluster.scheduling.lanes.view import LaneView
from muxcluster.scheduling.shares import Place, ShareLedger
from muxcluster.scheduling.state.model import ModelState

_EVEN = 0.5
_LEAST = 0.3
"""SM share of a prefill beside decodes: from an even split down to this where decodes are what
holds the unit back. Lower serves a little more and lets the first token wait twice as long."""
_PATIENCE = 2
"""A model passed over by this many launches per model goes first, whatever the others' slack."""


class AdbsLane:
    """At most one prefill job at a time; decode jobs, one a model, on the SMs that remain.

    A prefill that waits for SMs holds back new decode launches until it starts; one that waits
    for blocks or quota does not (it would starve the decodes that free them), and the next model
    is tried. Models come by least slack, round robin as tie-break; nobody waits for ever.

    Decodes divide the SMs in proportion to the work of their steps. The paper gives whoever is free
    what is free: models with short steps, which are free often, then keep those with long ones
    small for ever.
    """

    uses_quotas = True
    phases = frozenset({Phase.PREFILL, Phase.DECODE})

    def next_jobs(self, view: LaneView, now: float) -> list[Job]:
        """Launch a prefill where none runs, then decodes unless the prefill waits for SMs."""
        jobs, is_prefill_waiting = self._prefill(view, now)
        if not is_prefill_waiting:
            jobs += self._decodes(view, now)
        return jobs

    def turns(self, view: LaneView) -> list[ModelState]:
        """Nobody: a waiting model has other claims than its turn."""
        return []

    def repeats(self, view: LaneView, jobs: Sequence[Job]) -> bool:
        """True where their parts of the SMs are what they have."""
        works = _works(view, ())
        return all(
            view.shares.would_repeat(job, partial(_decode_place, view.shares, works, job.model))
            for job in jobs
        )

    def may_follow(self, view: LaneView, job: Job) -> bool:
        """True where no prefill waits for SMs, and its part of them is what it has."""
        if not view.shares.has_running(Phase.PREFILL) and view.could_prefill():
            return False
        return self.repeats(view, [job])

    def _prefill(self, view: LaneView, now: float) -> tuple[list[Job], bool]:
        if view.shares.has_running(Phase.PREFILL):
            return [], False
        models = self._in_turn(view, Phase.PREFILL, now)
        if not models:
            return [], False
        place = self._prefill_place(view)
        for model in models:
            if place is None:
                if view.may_prefill(model):
                    return [], True
            elif (job := view.launch(model, Phase.PREFILL, place, now)) is not None:
                return [job], False
        return [], False

    def _prefill_place(self, view: LaneView) -> Place | None:
        """Part of the SMs where there is something to decode, else all of them."""
        has_decodes = view.shares.has_running(Phase.DECODE) or any(
            view.has_decode_work(model) for model in view.models
        )
        if has_decodes:
            share = _EVEN - (_EVEN - _LEAST) * view.decode_pressure()
            return view.shares.beside(Phase.PREFILL, Phase.DECODE, share)
        return view.shares.full(Phase.PREFILL)

    def _decodes(self, view: LaneView, now: float) -> list[Job]:
        jobs: list[Job] = []
        models = self._in_turn(view, Phase.DECODE, now)
        for index, model in enumerate(models):
            starting = models[index : index + view.shares.num_free(Phase.DECODE)]
            if not starting:
                break
            place = _decode_place(view.shares, _works(view, starting), model.name)
            if place is None:
                break
            if (job := view.launch(model, Phase.DECODE, place, now)) is not None:
                jobs.append(job)
        return jobs

    def _in_turn(self, view: LaneView, phase: Phase, now: float) -> list[ModelState]:
        """Models with idle work of `phase` and no running job of it, the next one first."""
        has_work = view.has_prefill_work if phase is Phase.PREFILL else view.has_decode_work
        slack_s = view.prefill_slack_s if phase is Phase.PREFILL else view.decode_slack_s
        busy = view.shares.running_models(phase)
        waiting = [m for m in view.models if m.name not in busy and has_work(m)]
        if len(waiting) < 2:
            return waiting

        patience_ended = view.num_launches(phase) - _PATIENCE * len(view.models)

        def rank(model: ModelState) -> tuple[float, int]:
            last = view.last_turn(model, phase)
            return (-1.0 if last <= patience_ended else slack_s(model, now)), last

        return sorted(waiting, key=rank)


def _works(view: LaneView, starting: Sequence[ModelState]) -> dict[str, float]:
    """Work of a decode step of each model with a decode job or about to get one.

    Those that find no free worker are left out, or their parts of the SMs would lie idle.
    """
    running = view.shares.running_models(Phase.DECODE)
    models = [model for model in view.models if model.name in running or model in starting]
    return {model.name: model.step_work(view.decode_rows(model)) for model in models}


def _decode_place(shares: ShareLedger, works: dict[str, float], model: str) -> Place | None:
    """The model's part of the SMs that a running prefill leaves, as near as the rungs allow."""
    prefill = sum(job.share for job in shares.running if job.phase is Phase.PREFILL)
    return shares.near(Phase.DECODE, (1.0 - prefill) * works[model] / sum(works.values()))
