"""Followers: jobs that a worker has before the job they go on from ends, so that it never waits.

While a decode job runs, what comes next is often certain: the same sequences again, one token on,
at the same place. Then that job is sent at once (`pipeline_depth` 2). The worker has what it needs
by then: the last tokens stay in its memory. Not known yet is which sequences end meanwhile, by an
end token or an abort. Such a sequence ends with the job that it ends in, but the follower still
computes one more token of it, which is dropped. So its table row and blocks stay taken until the
follower has ended: given away, they would be overwritten.

Where sequences lend blocks (memory/lending.py) no job is followed while some blocks are lent, nor
over blocks that were: it would overwrite what no job has saved. Sequences in a job lend nothing.

A follower changes one decision: a request that comes while it waits, waits for it, too.
"""

import numpy as np

from muxcluster.core.job import Job, Phase
from muxcluster.kvcache.pool import Shortage
from muxcluster.scheduling.jobs import JobBuilder
from muxcluster.scheduling.lanes.view import Lane, LaneView, turns_before
from muxcluster.scheduling.packing.batch import Packing
from muxcluster.scheduling.packing.speculation import Speculation


class Pipelining:
    """Makes followers of running jobs."""

    def __init__(
        self,
        view: LaneView,
        lane: Lane,
        packing: Packing,
        builder: JobBuilder,
        speculation: Speculation,
        *,
        joins_forced: bool = False,
    ) -> None:
        """joins_forced: jobs may return several tokens of a row with a constraint."""
        self._models = {model.name: model for model in view.models}
        self._view = view
        self._lane = lane
        self._packing = packing
        self._builder = builder
        self._speculation = speculation
        self._joins_forced = joins_forced

    def next_jobs(self) -> list[Job]:
        """Return followers of the running jobs that have none, where what comes next is certain.

        Call it when the lane has launched all it can: a sequence that could decode and is in no job
        waits for a place, or for blocks, and has a claim to what the running jobs leave.
        """
        view = self._view
        if view.shares.is_exclusive or any(map(view.has_decode_work, view.models)):
            return []
        followers = map(self._follower, view.shares.running)
        return [job for job in followers if job is not None]

    def _follower(self, job: Job) -> Job | None:
        """None where something else may come, or blocks are short."""
        view, model = self._view, self._models[job.model]
        table = model.running
        if view.shares.follower(job) is not None or not self._is_plain(job):
            return None
        if not self._packing.decodes_all(model) or turns_before(self._lane, view, job) is None:
            return None
        if self._speculation.is_expected(model, job):
            return None
        table_rows = job.rows.table_rows
        stays = table.is_live[table_rows] & (
            table.num_tokens[table_rows] + 1 < table.max_total[table_rows]
        )
        if not stays.any():
            return None
        if not stays.all():
            table_rows = table_rows[stays]
        starts = table.num_computed[table_rows] + np.int32(1)
        if model.scaling is not None and model.scaling.num_fitting(starts) < len(table_rows):
            return None
        grown = model.kv.grow(table_rows, starts + np.int32(1))
        if isinstance(grown, Shortage):
            return None
        follower = self._builder.follow(job, model, table_rows, starts, grown)
        view.shares.follow(follower)
        view.count(follower)
        return follower

    def _is_plain(self, job: Job) -> bool:
        """True where all of its rows decode just one token, and none is known to be in trouble."""
        model, rows = self._models[job.model], job.rows
        table = model.running
        if job.phase is Phase.PREFILL or job.max_steps > 1 or job.copies:
            return False
        if rows.drafts is not None:
            return False
        if (
            table.has_aborted
            or table.has_suspect(rows.table_rows)
            or model.kv.lending.lies_over_lent
        ):
            return False
        if self._joins_forced and bool(table.is_constrained[rows.table_rows].any()):
            return False
        if job.phase is Phase.DECODE:
            return True
        is_prefilling = table.num_prefilling and bool(table.is_prefilling[rows.table_rows].any())
        return not is_prefilling
