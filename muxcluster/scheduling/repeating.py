"""Decode steps that only repeat: while nothing else happens, their outcome needs no decisions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from muxcluster.core.job import Job, Phase, Rows
from muxcluster.kvcache.cache import KvCache
from muxcluster.kvcache.model import Shortage
from muxcluster.scheduling.lanes.desk import Desk, Lane
from muxcluster.scheduling.modelstate import ModelState
from muxcluster.scheduling.slots import Slots


@dataclass(frozen=True, slots=True)
class Repetition:
    """A running decode job ended and was launched again as it was, `count` ≥ 1 times.

    order: of its last launch among all launches of the repetitions, from 0. start_s: when that
    was. running_s: seconds of the jobs that ended, together.
    """

    job: Job
    count: int
    order: int
    start_s: float
    running_s: float


class Repeating:
    """Says how often the running decode jobs would be launched again unchanged, and makes it so.

    A step changes no decision when all rows that decode are in jobs, none of them ends, the lane
    would give each job its place again, quotas stand, and the blocks come from the free list:
    lengths grow, memory shrinks, so what could not be admitted before cannot be meanwhile.
    """

    def __init__(
        self, models: Mapping[str, ModelState], kv: KvCache, desk: Desk, lane: Lane
    ) -> None:
        self._models = models
        self._kv = kv
        self._desk = desk
        self._lane = lane

    def limits(self, launched: Sequence[Job]) -> dict[int, int]:
        """How often each running decode job may be repeated, by job id; empty where none may.

        launched: what `next_jobs` answered last, just now.
        """
        jobs = [job for job in self._desk.shares.running if job.phase is Phase.DECODE]
        if not jobs or not self._is_steady(jobs, launched):
            return {}
        lefts = {job: self._steps_left(job) for job in jobs}
        longest = max(lefts.values())
        while longest and not self._has_blocks(lefts, longest):
            longest //= 2
        return {job.job_id: min(left, longest) for job, left in lefts.items()} if longest else {}

    def _is_steady(self, jobs: Sequence[Job], launched: Sequence[Job]) -> bool:
        desk = self._desk
        if desk.shares.is_exclusive or any(map(desk.has_decode_work, desk.models)):
            return False
        # Prompts were passed over by this very call, or are not asked for while some are computed.
        if not (
            desk.shares.has_running(Phase.PREFILL)
            or any(job.phase is Phase.DECODE for job in launched)
            or not any(map(desk.has_prefill_work, desk.models))
        ):
            return False
        return all(self._is_plain(job) and self._lane.repeats(desk, job) for job in jobs)

    def _is_plain(self, job: Job) -> bool:
        table = self._models[job.model].slots
        return (
            job.max_steps == 1
            and not table.has_aborted
            and not table.is_suspect[job.rows.slots].any()
        )

    def _steps_left(self, job: Job) -> int:
        """Steps until one of the rows ends, that one not counted."""
        table, slots = self._models[job.model].slots, job.rows.slots
        return int((table.max_total[slots] - table.num_tokens[slots]).min()) - 1

    def _has_blocks(self, lefts: Mapping[Job, int], longest: int) -> bool:
        """True where free blocks, within the quotas, carry everybody through so many steps."""
        total = 0
        for job, left in lefts.items():
            slots = job.rows.slots
            lengths = self._models[job.model].slots.num_computed[slots] + 1 + min(left, longest)
            lack = self._kv.lack(job.model, slots, lengths)
            if lack > self._kv.headroom(job.model):
                return False
            total += lack
        return total <= self._kv.free

    def repeat(self, repetitions: Sequence[Repetition]) -> list[Job]:
        """Everything is as after those steps, each row having got tokens of id 0; the jobs that
        run now, in the same order."""
        first_id = self._desk.skip([(each.job, each.order) for each in repetitions])
        return [self._repeat(each, first_id + each.order) for each in repetitions]

    def _repeat(self, done: Repetition, job_id: int) -> Job:
        job, count = done.job, np.int32(done.count)
        model, rows = self._models[job.model], job.rows
        table, slots = model.slots, rows.slots
        places = table.num_tokens[slots] - table.num_prompt[slots]
        columns = places[:, None] + np.arange(count, dtype=np.int32)
        table.outputs[slots[:, None], columns] = 0
        table.num_tokens[slots] += count
        table.num_computed[slots] += count
        table.set_deadlines(slots, done.start_s + table.tpot_s[slots])
        table.add_running(slots, done.running_s)
        model.counters.output_tokens += done.count * len(slots)
        self._grow(model, slots, table.num_computed[slots])
        model.peak_blocks = max(model.peak_blocks, self._kv.used(model.name))
        self._grow(model, slots, table.num_tokens[slots])
        starts = rows.starts + count
        again = replace(
            job,
            job_id=job_id,
            rows=Rows(slots, starts, rows.counts, rows.samples),
            tables=self._kv.tables(model.name, slots[:0]),
            admissions=(),
        )
        self._desk.shares.replace(job, again, done.start_s)
        return again

    def _grow(self, model: ModelState, slots: Slots, lengths: Slots) -> None:
        grown = self._kv.grow(model.name, slots, lengths)
        assert not isinstance(grown, Shortage), "repeated beyond the limits"
