"""Adaptive batch scheduling: prefill first, decodes of any model beside it (MuxServe, Alg. 3)."""

from collections.abc import Iterator, Sequence

from muxcluster.core.job import Phase
from muxcluster.scheduling.lanes.view import LaneView, Proposal
from muxcluster.scheduling.shares import Place
from muxcluster.scheduling.state.model import ModelState

# SM share of a prefill beside decodes: even if prompts are the bottleneck, falling to the least one
# as decodes become it. Lower serves a little more and lets the first token wait twice as long. With
# one model it rises to the most where prompts wait and decode steps read little KV: these need few
# SMs then, and the pool fills sooner (bench/offline/blendserve.py).
_EVEN = 0.5
_LEAST = 0.3
_MOST = 0.7

# A model that was not run in the last `_PATIENCE` launches per model of a phase goes first,
# whatever the slack of the others.
_PATIENCE = 2


class AdbsLane:
    """At most one prefill job at a time; decode jobs, one a model, on the SMs that remain.

    A prefill that waits for SMs holds back new decode launches until it starts. One that waits for
    blocks or quota does not (it would starve the decodes that free them): the next model is tried.
    Models come by least slack, ties by turn; no model waits forever.

    Decodes divide the SMs in proportion to the work of their steps. The paper gives all free SMs to
    the model that asks first: models with short steps, which ask often, then keep those with long
    steps on a small share.
    """

    uses_quotas = True
    phases = frozenset({Phase.PREFILL, Phase.DECODE})
    takes_turns = False
    may_pipeline = True

    def proposals(self, view: LaneView, now: float) -> Iterator[Proposal]:
        """A prefill where none runs, then decodes unless the prefill waits for SMs."""
        if not view.shares.has_running(Phase.PREFILL):
            models = self._in_turn(view, Phase.PREFILL, now)
            place = self._prefill_place(view) if models else None
            for model in models:
                if place is not None:
                    yield Proposal(model, Phase.PREFILL, place)
                    # The scheduler has launched it, or found that no request of it fits.
                    if view.shares.has_running(Phase.PREFILL):
                        break
                elif view.may_prefill(model):
                    return  # it waits for SMs alone: no decode may take them
        yield from self._decodes(view, now)

    def _prefill_place(self, view: LaneView) -> Place | None:
        """Part of the SMs where there is something to decode, else all of them."""
        has_decodes = view.shares.has_running(Phase.DECODE) or any(
            view.has_decode_work(model) for model in view.models
        )
        if has_decodes:
            share = _EVEN - (_EVEN - _LEAST) * view.decode_pressure()
            if len(view.models) == 1:
                share += (_MOST - _EVEN) * view.prefill_pressure()
            return view.shares.beside(Phase.PREFILL, Phase.DECODE, share)
        return view.shares.full(Phase.PREFILL)

    def _decodes(self, view: LaneView, now: float) -> Iterator[Proposal]:
        models = self._in_turn(view, Phase.DECODE, now)
        for index, model in enumerate(models):
            starting = models[index : index + view.shares.num_free(Phase.DECODE)]
            if not starting:
                return
            place = _decode_place(view, model, starting)
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


def _decode_place(
    view: LaneView, model: ModelState, starting: Sequence[ModelState]
) -> Place | None:
    """The model's part of the SMs that a running prefill leaves, as near as the rungs allow.

    starting: models that will get a decode job now. Those that find no free worker are left out,
    or their parts of the SMs would lie idle.
    """
    shares = view.shares
    running = shares.running_models(Phase.DECODE)
    works = {
        each.name: each.step_work(view.decode_rows(each))
        for each in view.models
        if each.name in running or each in starting
    }
    prefill = sum(job.share for job in shares.running if job.phase is Phase.PREFILL)
    return shares.near(Phase.DECODE, (1.0 - prefill) * works[model.name] / sum(works.values()))
