"""Speculation: decode jobs check draft tokens, only while that gains by what was measured.

A row with k drafts processes k + 1 tokens and samples a token behind each. Those up to the first
that differs from its draft are its output: the tokens that it would have got one by one, as each is
sampled with the random number of its own place. Positions of wrong drafts are computed again.

What drafts gain: with a chance p that a draft is right whose predecessors are, k of them yield
p + p² + … + pᵏ tokens. A token is worth its part of a step, step / rows; a draft costs the seconds
by which it makes the step longer. So the k-th draft of a row gains where pᵏ · step / rows > cost,
and whether it does is asked for each row by itself. The more rows a step has, the less a token is
worth, and the closer a draft's cost comes to it: under load speculation ends by itself. Chances are
measured by request and model, costs by model and SM share, as what jobs with drafts took longer
than predicted without.

Rows have no drafts whose constraint forces tokens, nor jobs with suspects, with copies, or over
blocks that were lent.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import log
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from muxcluster.core.backends import DENSE, ENCODER
from muxcluster.core.job import DraftTokens, Job, Phase
from muxcluster.core.unitspec import MOST_LOGIT_PLACES, ModelSpec, SpeculationSpec
from muxcluster.scheduling.memory.admission import Memory
from muxcluster.scheduling.packing.batch import Batch, Limits, merged_tables
from muxcluster.scheduling.packing.lookup import looked_up
from muxcluster.scheduling.state.draft_record import DraftRecord
from muxcluster.scheduling.state.model import ModelState
from muxcluster.scheduling.state.running import TableRows
from muxcluster.scheduling.steptime.line import decode_work, work_of
from muxcluster.scheduling.steptime.model import StepTimes

# Chance of a model's drafts before any was checked, which counts as so many checked ones; that of
# its model counts as so many of a request's own.
_CHANCE, _CHANCE_WEIGHT, _MODEL_WEIGHT = 0.7, 8.0, 2.0
_MODEL_FADING, _REQUEST_FADING = 0.98, 0.9
_LEAST_GAIN = 1.15  # tokens' worth over costs, from which on a draft is taken
# A row whose drafts are not expected to gain has one in every so many jobs, if a draft that is
# surely right would gain so much: its text may have changed.
_RETRY_JOBS, _RETRY_GAIN = 32, 2.0
# Where blocks for drafts were short, none are expected for so many jobs, which are sent ahead
_SHORT_JOBS = 32
_COST_WEIGHT = 16.0  # drafts for which the predicted cost counts
_COST_FADING = 0.95  # weight of what was measured before, at each job with drafts
_LEAST_COST = 0.25  # of the predicted one: noise of measurements makes no draft free
# After so many jobs with drafts one has none: what it takes without must stay known.
_MOST_IN_A_ROW = 32
# Drafts make a step longer by this part of it at most: where some rows have none, and at all, for
# others wait for the step, too.
_MOST_LONGER, _MOST_LONGER_FOR_ALL = 0.25, 1.0


def may_speculate(spec: ModelSpec, *, is_simulated: bool = False) -> bool:
    """Return whether a model has drafts at all: it was asked for, and positions can be computed
    again, which states that a model keeps of its text forbid."""
    if spec.speculation is None or (is_simulated and spec.speculation.acceptance <= 0):
        return False
    if spec.embedding_size or spec.padded is not None:
        return False
    has_states = spec.state_columns > 0 or not spec.is_positional
    return not has_states and spec.backend not in (DENSE, ENCODER)


@dataclass(slots=True)
class _Cost:
    """Measured seconds of draft tokens at one SM share."""

    seconds: float = 0.0
    num_drafts: float = 0.0

    def add(self, seconds: float, num_drafts: int) -> None:
        self.seconds = _COST_FADING * self.seconds + seconds
        self.num_drafts = _COST_FADING * self.num_drafts + num_drafts

    def of_one(self, predicted_s: float) -> float:
        found = (_COST_WEIGHT * predicted_s + self.seconds) / (_COST_WEIGHT + self.num_drafts)
        return max(found, _LEAST_COST * predicted_s)


@dataclass(slots=True)
class _ModelDrafts:
    """What was measured of one model."""

    record: DraftRecord = field(default_factory=lambda: DraftRecord(_MODEL_FADING))
    costs: dict[float, _Cost] = field(default_factory=dict)  # by SM share
    num_in_a_row: int = 0  # jobs with drafts since the last one without
    # jobs for which no drafts are expected, as blocks for the last ones were short
    num_short: int = 0
    last_asked: int = -1  # latest job that `is_expected` was asked about


class _Price(NamedTuple):
    """What a draft costs and is worth in one job."""

    cost_s: float
    token_s: float  # of the step, a row's part
    step_s: float


class _Guess(NamedTuple):
    """Drafts of one row of a batch."""

    place: int  # in the batch
    chance: float
    tokens: NDArray[np.int32]


class Speculation:
    """Gives decode jobs their draft tokens, and learns from what became of them."""

    def __init__(self, memory: Memory, limits: Limits, times: StepTimes) -> None:
        """times: predictions, which are told of the jobs without drafts."""
        self._memory = memory
        self._limits = limits
        self._times = times
        self._models = {
            model.name: _ModelDrafts()
            for model in memory.models
            if may_speculate(model.spec, is_simulated=not model.running.keeps_output)
        }

    @property
    def is_on(self) -> bool:
        """True where some model may have drafts."""
        return bool(self._models)

    def covers(self, name: str) -> bool:
        """Return whether a model may have drafts."""
        return name in self._models

    def with_drafts(self, model: ModelState, phase: Phase, share: float, batch: Batch) -> Batch:
        """Return `batch` with drafts for the rows for which they are expected to gain.

        Blocks for them are taken where there are some to spare.
        """
        if phase is Phase.PREFILL or batch.max_steps > 1 or batch.copies or len(batch) == 0:
            return batch
        if not self._may_draft(model, batch.rows):
            return batch
        room = self._room(phase, batch.counts)
        guesses, without = self._guesses(model, batch.rows, batch.counts, share, room)
        _count(without)
        return self._extended(model, batch, guesses) if guesses else batch

    def is_expected(self, model: ModelState, job: Job) -> bool:
        """Return whether the rows of `job`, which decodes, would have drafts if it ended now."""
        known = self._models.get(model.name)
        if known is None:
            return False
        is_first = job.job_id > known.last_asked  # it may be asked again and again while it runs
        known.last_asked = max(known.last_asked, job.job_id)
        if known.num_short:
            known.num_short -= is_first
            return False
        alive = model.running.is_live[job.rows.table_rows]
        rows, counts = job.rows.table_rows[alive], job.rows.counts[alive]
        if not self._may_draft(model, rows):
            return False
        room = min(1, self._room(job.phase, counts))
        guesses, without = self._guesses(model, rows, counts, job.share, room, is_any=True)
        if is_first and not guesses:
            _count(without)
        return bool(guesses)

    def observe(
        self, model: ModelState, job: Job, counts: NDArray[np.int32], seconds: float, beside: int
    ) -> None:
        """Learn from a job of the model, before its result is applied.

        counts: int32 [rows], tokens that each yielded. seconds: it took, beside so many others.
        """
        known, drafts = self._models.get(model.name), job.rows.drafts
        if known is None or job.phase is Phase.PREFILL:
            return
        if drafts is None:
            known.num_in_a_row = 0
            return
        known.num_in_a_row += 1
        for row in drafts.counts.nonzero()[0].tolist():
            num_drafts, num_right = int(drafts.counts[row]), int(counts[row]) - 1
            known.record.add(num_drafts, num_right)
            _record(model, int(job.rows.table_rows[row])).add(num_drafts, num_right)
        plain = replace(job.rows, counts=job.rows.counts - drafts.counts, drafts=None)
        work = work_of(replace(job, rows=plain))
        if work.num_tokens:
            return  # what its prompts took is predicted too roughly
        alone_s = self._times.of(model.name, job.share).job_s(work)
        if alone_s:
            plain_s = alone_s * self._times.beside(model.name, Phase.DECODE, beside)
            cost = known.costs.setdefault(job.share, _Cost())
            cost.add(seconds - plain_s, int(drafts.counts.sum()))

    def _may_draft(self, model: ModelState, rows: TableRows) -> bool:
        known, spec = self._models.get(model.name), model.spec.speculation
        if known is None or spec is None or not len(rows):
            return False
        if known.num_in_a_row >= _MOST_IN_A_ROW and not spec.is_forced:
            return False
        return not (model.running.has_suspect(rows) or self._memory.may_overwrite(model))

    def _room(self, phase: Phase, counts: NDArray[np.int32]) -> int:
        """Return how many drafts fit beside rows with so many tokens each, below 1 if none.

        A job has logits at no more places than a plan counts.
        """
        num_tokens = int(np.add.reduce(counts))
        return min(self._limits.most_tokens(phase) - num_tokens, MOST_LOGIT_PLACES - len(counts))

    def _guesses(
        self,
        model: ModelState,
        rows: TableRows,
        counts: NDArray[np.int32],
        share: float,
        room: int,
        *,
        is_any: bool = False,
    ) -> tuple[Sequence[_Guess], Sequence[DraftRecord]]:
        """Return the drafts of rows of a job that processes counts[i] tokens of each without them,
        and the records of rows whose drafts are not expected to gain.

        room: most drafts. is_any: those of one row are enough.
        """
        spec, table = model.spec.speculation, model.running
        assert spec is not None
        is_decoding = ~table.is_prefilling[rows]
        lefts = table.max_total[rows] - table.num_tokens[rows] - 1
        may_have = is_decoding & (counts == 1) & ~table.is_constrained[rows] & (lefts > 0)
        places = may_have.nonzero()[0].tolist()
        if not places or room <= 0:
            return (), ()
        price = self._price(model, rows[is_decoding], counts[is_decoding], share)
        if price is None and not spec.is_forced:
            return (), ()
        expected = self._models[model.name].record.chance(_CHANCE, _CHANCE_WEIGHT)
        found: list[_Guess] = []
        without: list[DraftRecord] = []
        for place in places:
            row = int(rows[place])
            record = _record(model, row)
            chance = record.chance(expected, _MODEL_WEIGHT)
            most = spec.num_tokens if price is None else _most(spec, record, chance, price)
            if not most:
                without.append(record)
            most = min(most, int(lefts[place]), room)
            if most <= 0:
                continue
            tokens = _guess(model, spec, row, most)
            if len(tokens):
                found.append(_Guess(place, chance, tokens))
                if is_any:
                    break
        if price is not None and not spec.is_forced:
            room = min(room, _bearable(model, rows, found, price))
        return _first(found, room), without

    def _price(
        self, model: ModelState, rows: TableRows, counts: NDArray[np.int32], share: float
    ) -> _Price | None:
        """Return what a draft costs beside rows that decode so many tokens; None: not known."""
        times = self._times.of(model.name, share)
        num_tokens, context = decode_work(model.running.num_computed[rows], counts)
        step_s = times.decode_s(num_tokens, context)
        if step_s <= 0:
            return None
        more_s = times.decode_s(num_tokens + 1, context + context / num_tokens) - step_s
        cost = self._models[model.name].costs.get(share, _Cost())
        return _Price(cost.of_one(more_s), step_s / len(rows), step_s)

    def _extended(self, model: ModelState, batch: Batch, guesses: Sequence[_Guess]) -> Batch:
        """Return the batch with these drafts; without any where blocks are short."""
        counts = np.zeros(len(batch), dtype=np.int32)
        for guess in guesses:
            counts[guess.place] = len(guess.tokens)
        places = counts.nonzero()[0]
        rows = batch.rows[places]
        lengths = model.running.num_tokens[rows] + counts[places]
        grown = self._memory.grow_ahead(model, rows, lengths)
        self._models[model.name].num_short = _SHORT_JOBS if grown is None else 0
        if grown is None:
            return batch
        tables = [each for each in (batch.grown, grown) if each is not None and len(each)]
        tokens = [each.tokens for each in sorted(guesses, key=lambda each: each.place)]
        return replace(
            batch,
            counts=batch.counts + counts,
            grown=merged_tables(tables),
            drafts=DraftTokens(counts, np.concatenate(tokens)),
        )


def _record(model: ModelState, row: int) -> DraftRecord:
    """Return what is known of the drafts of the request in a row."""
    live = model.running.at(row)
    if live.drafts is None:
        live.drafts = DraftRecord(_REQUEST_FADING)
    return live.drafts


def _count(without: Sequence[DraftRecord]) -> None:
    """Note a job in which rows have no drafts, as these are not expected to gain."""
    for record in without:
        record.num_without += 1


def _most(spec: SpeculationSpec, record: DraftRecord, chance: float, price: _Price) -> int:
    """Return how many drafts of a row gain: the most k with chanceᵏ · token ≥ cost."""
    if spec.is_forced:
        return spec.num_tokens
    share = price.cost_s / price.token_s
    if share <= 0:
        return spec.num_tokens
    least = _LEAST_GAIN * share  # chance of the last draft
    if least < chance:
        return min(spec.num_tokens, int(log(least) / log(chance)))
    return int(record.num_without + 1 >= _RETRY_JOBS and share * _RETRY_GAIN < 1)


def _guess(model: ModelState, spec: SpeculationSpec, row: int, most: int) -> NDArray[np.int32]:
    """Return up to `most` drafts of a row, int32 [n]."""
    table = model.running
    if not table.keeps_output:  # a simulator's, where every token is 0
        return np.zeros(most if spec.acceptance > 0 else 0, dtype=np.int32)
    longest, shortest = spec.longest_match, spec.shortest_match
    return looked_up(table.tokens(row), most, longest=longest, shortest=shortest)


def _bearable(model: ModelState, rows: TableRows, found: Sequence[_Guess], price: _Price) -> int:
    """Return how many drafts a job of `rows` may have, where `found` are those that gain."""
    if price.cost_s <= 0:
        return sum(len(each.tokens) for each in found)
    table = model.running
    others = np.delete(rows, [each.place for each in found])
    if not len(others):
        return int(_MOST_LONGER_FOR_ALL * price.step_s / price.cost_s)
    most_s = _MOST_LONGER * price.step_s
    if table.has_targets:
        tpot_s = float(table.tpot_s[others].min(initial=np.inf))
        most_s = min(most_s, max(0.0, tpot_s - price.step_s))
    return int(most_s / price.cost_s)


def _first(found: list[_Guess], most: int) -> Sequence[_Guess]:
    """Return the likeliest of the drafts, `most` at most, those of a row together or cut."""
    if sum(len(each.tokens) for each in found) <= most:
        return found
    kept: list[_Guess] = []
    for guess in sorted(found, key=lambda each: -each.chance):
        tokens = guess.tokens[:most]
        if len(tokens):
            kept.append(guess._replace(tokens=tokens))
        most -= len(tokens)
    return kept
