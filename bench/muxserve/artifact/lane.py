"""The scheduler of the published runs (ADBS): every process of a model has one SM share.

Read from the reference's public code (muxserve/muxsched/scheduler.py and resource.py, commit
2249cfa), so that what is simulated is what was measured. Ours (`scheduling/lanes/adbs.py`) chooses
shares as the work of a step asks for them, and is faster on the same meshes.
"""

from collections.abc import Iterator, Sequence

from bench.muxserve.artifact.published import Served
from muxcluster.core.job import Phase, WorkerSpec
from muxcluster.scheduling.lanes.view import LaneView, Proposal
from muxcluster.scheduling.shares import Place
from muxcluster.scheduling.state.model import ModelState

# Of the SMs, what jobs side by side have together at most: `overload_threshold: 2`, in tenths.
GIVEN_OUT = 1.2
_EPSILON = 1e-6


def part_of(share: float) -> float:
    """Return an SM share as the part of what is given out: our shares sum to 1 at most."""
    return round(share / GIVEN_OUT, 6)


def share_of(part: float) -> float:
    """Return the SM share of such a part, in whole percents."""
    return round(part * GIVEN_OUT, 2)


def workers_of(models: Sequence[Served]) -> tuple[WorkerSpec, ...]:
    """Return a worker for prefills, one at a time, and one a model for its decodes."""
    prefills = sorted({part_of(model.prefill_share) for model in models})
    return (
        WorkerSpec(0, tuple(prefills), frozenset({Phase.PREFILL})),
        *(
            WorkerSpec(index, (part_of(model.decode_share),), frozenset({Phase.DECODE}))
            for index, model in enumerate(models, 1)
        ),
    )


class ReferenceLane:
    """ADBS with fixed shares: prefills first, models in turn, then decodes of all, in turn.

    A prefill that finds too few SMs lets others try; while none runs and one waits for SMs alone,
    no decode starts.
    """

    uses_quotas = True
    phases = frozenset({Phase.PREFILL, Phase.DECODE})
    takes_turns = False
    may_pipeline = False

    def __init__(self, models: Sequence[Served]) -> None:
        """models: of the mesh, in the order in which `workers_of` got them."""
        self._places = {
            Phase.PREFILL: {m.name: Place(0, part_of(m.prefill_share)) for m in models},
            Phase.DECODE: {
                m.name: Place(index, part_of(m.decode_share)) for index, m in enumerate(models, 1)
            },
        }

    def proposals(self, view: LaneView, now: float) -> Iterator[Proposal]:
        """A prefill where none runs, then decodes unless a prefill waits for SMs."""
        waits_for_sms = False
        if not view.shares.has_running(Phase.PREFILL):
            for model in _in_turn(view, Phase.PREFILL):
                place = self._places[Phase.PREFILL][model.name]
                if place.share <= view.shares.left + _EPSILON:
                    yield Proposal(model, Phase.PREFILL, place)
                    if view.shares.has_running(Phase.PREFILL):
                        waits_for_sms = False
                        break
                elif view.may_prefill(model):
                    waits_for_sms = True
        if not waits_for_sms:
            yield from self._decodes(view)

    def _decodes(self, view: LaneView) -> Iterator[Proposal]:
        for model in _in_turn(view, Phase.DECODE):
            place = self._places[Phase.DECODE][model.name]
            if place.share <= view.shares.left + _EPSILON:
                yield Proposal(model, Phase.DECODE, place)


def _in_turn(view: LaneView, phase: Phase) -> list[ModelState]:
    """Models with idle work of `phase` and no running job of it, those after the last one first."""
    has_work = view.has_prefill_work if phase is Phase.PREFILL else view.has_decode_work
    busy, models = view.shares.running_models(phase), view.models
    turns = [view.last_turn(model, phase) for model in models]
    first = turns.index(max(turns)) + 1 if any(turns) else 0
    rotated = (*models[first:], *models[:first])
    return [model for model in rotated if model.name not in busy and has_work(model)]
