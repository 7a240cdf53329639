"""Adaptive batch scheduling: prefill first, decodes of any model beside it (MuxServe, Alg. 3)."""

from collections.abc import Iterator

from muxcluster.core.job import Phase
from muxcluster.scheduling.lanes.view import LaneView, Proposal
from muxcluster.scheduling.shares import Place
from muxcluster.scheduling.state.model import ModelState

# A model that was not run in the last `_PATIENCE` launches per model of a phase goes first,
# whatever the slack of the others.
_PATIENCE = 2


class AdbsLane:
    """At most one prefill job at a time; decode jobs, one a model, on the SMs that remain.

    A prefill that waits for SMs holds back new decode launches until it starts. One that waits for
    blocks or quota does not (it would starve the decodes that free them): the next model is tried.
    Models come by least slack, ties by turn; no model waits forever.

    Shares are chosen together (`Division`): for a prefill and all decodes that run or want to, as
    far as there are workers; then, when a decode starts, for the decodes on what a prefill leaves.
    The paper gives all free SMs to the model that asks first: models with short steps, which ask
    often, then keep those with long steps on a small share.
    """

    uses_quotas = True
    phases = frozenset({Phase.PREFILL, Phase.DECODE})
    takes_turns = False
    may_pipeline = True

    def proposals(self, view: LaneView, now: float) -> Iterator[Proposal]:
        """A prefill where none runs, then decodes unless the prefill waits for SMs."""
        if not view.shares.has_running(Phase.PREFILL):
            models = self._in_turn(view, Phase.PREFILL, now)
            for model in models:
                place = self._prefill_place(view, model, now)
                if place is not None:
                    yield Proposal(model, Phase.PREFILL, place)
                    # The scheduler has launched it, or found that no request of it fits.
                    if view.shares.has_running(Phase.PREFILL):
                        break
                elif view.may_prefill(model):
                    return  # it waits for SMs alone: no decode may take them
        yield from self._decodes(view, now)

    def _prefill_place(self, view: LaneView, model: ModelState, now: float) -> Place | None:
        """Part of the SMs where there is something to decode, else all of them.

        None where it waits for SMs, although fewer may be free.
        """
        shares = view.shares
        decodes = (*_decoding(view), *self._in_turn(view, Phase.DECODE, now))
        if not decodes:
            return shares.full(Phase.PREFILL)
        jobs = [view.prefill_of(model)]
        jobs += map(view.decode_of, decodes[: shares.num_workers(Phase.DECODE)])
        return shares.at(Phase.PREFILL, view.division.prefill(jobs, view.prefill_urgency()))

    def _decodes(self, view: LaneView, now: float) -> Iterator[Proposal]:
        models, shares = self._in_turn(view, Phase.DECODE, now), view.shares
        for index, model in enumerate(models):
            starting = models[index : index + shares.num_free(Phase.DECODE)]
            if not starting:
                return
            prefill = sum(job.share for job in shares.running if job.phase is Phase.PREFILL)
            both = (*starting, *_decoding(view))
            together = [each for each in view.models if each in both]
            rung = view.division.decode(
                [view.decode_of(each) for each in together],
                together.index(model),
                round(1.0 - prefill, 6),
            )
            place = shares.up_to(Phase.DECODE, rung)
            if place is None:
                return
            yield Proposal(model, Phase.DECODE, place)

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


def _decoding(view: LaneView) -> list[ModelState]:
    """Models whose decodes run."""
    busy = view.shares.running_models(Phase.DECODE)
    return [model for model in view.models if model.name in busy]
