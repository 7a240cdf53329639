"""Makes the job that a worker gets from a batch."""

import numpy as np
from numpy.typing import NDArray

from muxcluster.core.job import Admission, Job, Phase, Rows, SharedPrefixes, TableDelta
from muxcluster.scheduling.packing.batch import Batch
from muxcluster.scheduling.shares import Place
from muxcluster.scheduling.state.model import ModelState
from muxcluster.scheduling.state.slots import Slots


class JobBuilder:
    """Numbers jobs and describes their rows, table changes and admissions."""

    def __init__(self, *, saves: bool = False) -> None:
        """saves: sequences lend blocks, and what a job overwrites there must be saved."""
        self._saves = saves
        self.next_id = 0  # of the next job

    def skip(self, num_ids: int) -> int:
        """Skip so many ids; return the first of them."""
        first = self.next_id
        self.next_id += num_ids
        return first

    def build(self, model: ModelState, phase: Phase, place: Place, batch: Batch, now: float) -> Job:
        """Return the job of `batch` (not empty); its sequences count as running from now on."""
        table = model.slots
        slots = batch.slots
        starts = table.num_computed[slots]
        if phase is Phase.DECODE:  # each row's last known token
            samples = np.ones(len(slots), dtype=np.bool_)
        else:
            samples = starts + batch.counts == table.num_tokens[slots]
        table.start_job(slots)
        copies = batch.copies
        if copies is None:
            ends = starts + batch.counts + np.int32(batch.max_steps - 1)
            copies = model.kv.saves(slots, ends, self.next_id) if self._saves else ()
        return Job(
            job_id=self.skip(1),
            model=model.name,
            phase=phase,
            worker_id=place.worker_id,
            share=place.share,
            rows=Rows(
                slots,
                starts,
                batch.counts,
                samples,
                self._prefixes(model, slots, batch.counts),
            ),
            tables=self._tables(model, batch),
            admissions=tuple([self._admission(model, slot, now) for slot in batch.admitted]),
            max_steps=batch.max_steps,
            copies=copies,
        )

    def follow(
        self,
        job: Job,
        model: ModelState,
        slots: Slots,
        starts: NDArray[np.int32],
        grown: TableDelta,
    ) -> Job:
        """Return the job that goes on from `job` with `slots`, which are in it, from `starts` on.

        grown: their new table entries.
        """
        counts, samples = job.rows.counts[: len(slots)], job.rows.samples[: len(slots)]
        prefixes = self._prefixes(model, slots, counts)
        return Job(
            job_id=self.skip(1),
            model=job.model,
            phase=job.phase,
            worker_id=job.worker_id,
            share=job.share,
            rows=Rows(slots, starts, counts, samples, prefixes),
            tables=grown,
            follows=job.job_id,
        )

    def _prefixes(
        self, model: ModelState, slots: Slots, counts: NDArray[np.int32]
    ) -> SharedPrefixes | None:
        """What the rows of one token share; longer ones read for many tokens at once anyway."""
        is_single = counts == 1
        if is_single.all():
            return model.kv.shared_prefixes(slots)
        found = model.kv.shared_prefixes(slots[is_single])
        if found is None:
            return None
        leaders, tokens = slots.copy(), np.zeros(len(slots), dtype=np.int32)
        leaders[is_single], tokens[is_single] = found.leaders, found.tokens
        return SharedPrefixes(leaders, tokens)

    def _tables(self, model: ModelState, batch: Batch) -> TableDelta:
        """Whole tables of admitted rows (a prefix may be attached), new entries of the others."""
        if batch.grown is not None and not len(batch.admitted):
            return batch.grown
        admitted = model.kv.tables(np.array(batch.admitted, dtype=np.int32))
        if batch.grown is None or len(batch.grown) == 0:
            return admitted
        if len(admitted) == 0:
            return batch.grown
        return TableDelta(
            _joined(batch.grown.slots, admitted.slots),
            _joined(batch.grown.columns, admitted.columns),
            _joined(batch.grown.blocks, admitted.blocks),
        )

    def _admission(self, model: ModelState, slot: int, now: float) -> Admission:
        live = model.slots.at(slot)
        if not live.account.has_started:
            self._count_first(model, slot)
        live.account.launch(now)
        return Admission(
            slot=slot,
            request_id=live.request.request_id,
            tokens=model.slots.tokens(slot),
            num_prompt_tokens=live.num_prompt,
            sampling=live.request.sampling,
            side=live.side,
        )

    def _count_first(self, model: ModelState, slot: int) -> None:
        live = model.slots.at(slot)
        live.num_cached_tokens = min(int(model.slots.num_computed[slot]), live.num_prompt)
        if model.uses_prefixes(live):
            model.counters.prefix_queries += live.num_prompt
            model.counters.prefix_hits += live.num_cached_tokens


def _joined(first: NDArray[np.int32], second: NDArray[np.int32]) -> NDArray[np.int32]:
    return np.concatenate((first, second))
