"""The plan of one piece of a batch job, made on its real tokens in a process of its own."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from muxcluster.batch.plan.asked import AskedLine, Served, job_of, read_asked
from muxcluster.batch.plan.prediction import AUTO
from muxcluster.batch.store.pending import Pending
from muxcluster.core.batch_part import BatchPart
from muxcluster.http.calls.call import Prompt
from muxcluster.offline.blend.lengths import sample_places
from muxcluster.offline.choice import Unplanned, compare_orders, sample_job
from muxcluster.offline.feed.lines import is_planned
from muxcluster.offline.feed.parts import part_of
from muxcluster.offline.order.orders import ORDERS, OfflineJob, order_requests
from muxcluster.sim.batch.division import Part, divide_job
from muxcluster.sim.batch.simulate import SimPredictor
from muxcluster.sim.batch.together import OrderedJob, compare_together

SAMPLED = 500  # requests on which orders are compared: more would delay the start


@dataclass(frozen=True, slots=True)
class Learnt:
    """What the pieces of a batch so far tell about the next one."""

    orders: Mapping[str, str] = field(default_factory=dict)  # by model, once chosen
    # By model, those that run before it in its unit, where that is predicted to be faster
    after: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    output_tokens: Mapping[str, float] = field(default_factory=dict)  # mean by model, of results


@dataclass(frozen=True, slots=True)
class Piece:
    """Lines of a batch that are planned together."""

    piece_id: str
    file: Path
    lines: Sequence[Pending]
    served: Served
    order: str  # a name, or auto
    urgency: float = 0.0
    learnt: Learnt = Learnt()


@dataclass(frozen=True, slots=True, eq=False)
class PromptTable:
    """The prompts of lines as arrays, line by line: thousands of objects would be slow to send."""

    lines: NDArray[np.int64]  # int64 [n]
    counts: NDArray[np.int64]  # int64 [n], prompts of each line
    ids: NDArray[np.int32]  # int32 [tokens]
    offsets: NDArray[np.int64]  # int64 [prompts + 1]
    max_tokens: NDArray[np.int64]  # int64 [prompts]
    texts: Sequence[str]  # [prompts], see `Prompt`

    @classmethod
    def of(cls, prompts: Mapping[int, Sequence[Prompt]]) -> "PromptTable":
        """prompts: by line."""
        found = [prompt for each in prompts.values() for prompt in each]
        lengths = [len(prompt.tokens) for prompt in found]
        none = np.empty(0, dtype=np.int32)
        return cls(
            np.array(list(prompts), dtype=np.int64),
            np.array([len(each) for each in prompts.values()], dtype=np.int64),
            np.concatenate([none, *(prompt.tokens for prompt in found)]).astype(np.int32),
            np.cumsum([0, *lengths]),
            np.array([prompt.max_tokens for prompt in found], dtype=np.int64),
            [prompt.text for prompt in found],
        )

    def by_line(self) -> dict[int, tuple[Prompt, ...]]:
        """Return the prompts by line; their tokens are views."""
        bounds, most = self.offsets.tolist(), self.max_tokens.tolist()
        prompts = [
            Prompt(text, self.ids[bounds[i] : bounds[i + 1]], most[i])
            for i, text in enumerate(self.texts)
        ]
        edges = pairwise([0, *np.cumsum(self.counts).tolist()])
        return {
            line: tuple(prompts[start:end])
            for line, (start, end) in zip(self.lines.tolist(), edges, strict=True)
        }


@dataclass(frozen=True, slots=True, eq=False)
class PlannedPart:
    """A part for one unit. Its lines have numbers in the order they are expected to start."""

    part: BatchPart
    unit_id: str
    lines: NDArray[np.int64]  # int64 [n], by number
    sequence: NDArray[np.int64]  # int64 [n], numbers as they are expected to start


@dataclass(frozen=True, slots=True, eq=False)
class PlannedPiece:
    """A plan of all lines of a piece."""

    parts: Sequence[PlannedPart]
    unplanned: Sequence[int]  # lines without a unit, or whose request is wrong
    prompts: PromptTable
    learnt: Learnt


def plan_piece(piece: Piece) -> PlannedPiece:
    """Tokenise the lines, choose an order for each model and divide its lines over its units.

    A line of several prompts is planned by its first. Raises OSError if the file cannot be read,
    LoadError for a model's files.
    """
    return _Planning(piece).run()


class _Planning:
    def __init__(self, piece: Piece) -> None:
        self._piece = piece
        self._settings = piece.served.settings
        self._orders = dict(piece.learnt.orders)
        self._after = dict(piece.learnt.after)
        self._jobs: dict[str, OrderedJob] = {}

    def run(self) -> PlannedPiece:
        piece = self._piece
        read = read_asked(piece.file, piece.lines, piece.served, piece.learnt.output_tokens)
        parts = [
            part for model, asked in read.of_model.items() for part in self._parts(model, asked)
        ]
        self._settle_turns(tuple(read.of_model))
        parts = [self._standing(part) for part in parts]
        learnt = Learnt(self._orders, self._after, piece.learnt.output_tokens)
        return PlannedPiece(parts, read.unplanned, PromptTable.of(read.prompts), learnt)

    def _parts(self, model: str, asked: Sequence[AskedLine]) -> list[PlannedPart]:
        """Divide the model's lines over its units."""
        settings = self._settings[model]
        job = job_of(asked, settings[0])
        whole = job.with_tree()
        are_known = all(each.is_known for each in asked)
        order = self._order(model, job, whole, are_known=are_known)
        self._jobs[model] = OrderedJob(job, order, are_known)
        return [
            self._part(model, part, [asked[number] for number in part.numbers.tolist()], order)
            for part in divide_job(job, whole, settings)
        ]

    def _order(self, model: str, job: Unplanned, whole: OfflineJob, *, are_known: bool) -> str:
        order = self._orders.get(model, self._piece.order)
        if order == AUTO:
            setting = self._settings[model][0]
            sample = sample_job(job, whole, SAMPLED)
            predictor = SimPredictor(setting.unit, model, setting.resources)
            order = compare_orders(sample, predictor, tuple(ORDERS), are_known=are_known).best
        self._orders[model] = order
        return order

    def _part(self, model: str, part: Part, asked: Sequence[AskedLine], order: str) -> PlannedPart:
        """asked: the lines of the part, by number."""
        tree, unit_id = part.planned.tree, part.setting.unit.spec.unit_id
        lengths = [each.output_tokens if each.is_known else np.nan for each in asked]
        known = np.array(lengths, dtype=np.float64)[tree.order]
        part_id = f"{self._piece.piece_id}/{model}/{unit_id}"
        sequence = order_requests(part.planned, order)
        if is_planned(order) and np.isnan(known).all():
            sampled = tree.order[sample_places(tree, np.random.default_rng(part.planned.seed))]
            sequence = np.concatenate((sampled, sequence[~np.isin(sequence, sampled)]))
        return PlannedPart(
            part_of(part_id, model, part.planned, order, known),
            unit_id,
            np.array([each.line for each in asked], dtype=np.int64),
            sequence,
        )

    def _settle_turns(self, models: tuple[str, ...]) -> None:
        """Let models of the same units take turns where that is predicted to be faster."""
        sharing: dict[tuple[str, ...], list[str]] = defaultdict(list)
        for model in models:
            units = self._settings[model]
            sharing[tuple(sorted(each.unit.spec.unit_id for each in units))].append(model)
        for group in sharing.values():
            if len(group) > 1 and not any(model in self._after for model in group):
                is_in_turn = not self._gains_at_once(group)
                for place, model in enumerate(group):
                    self._after[model] = tuple(group[:place]) if is_in_turn else ()

    def _gains_at_once(self, models: Sequence[str]) -> bool:
        """True if running at once is predicted to be faster, or if nothing can be predicted."""
        unit = self._settings[models[0]][0].unit
        if any(self._settings[model][0].unit.spec != unit.spec for model in models):
            return True
        jobs = {model: self._jobs[model] for model in models}
        return compare_together(unit, jobs, SAMPLED).is_faster

    def _standing(self, planned: PlannedPart) -> PlannedPart:
        after = self._after.get(planned.part.model, ())
        part = replace(planned.part, urgency=self._piece.urgency, after=after)
        return replace(planned, part=part)
