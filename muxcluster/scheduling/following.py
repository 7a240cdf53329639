"""Jobs that are with their worker before the one they go on from has ended, so that it never waits.

While a decode job runs, what comes next is often certain: the same sequences again, one token on,
at the same place. Then that job is sent at once (`pipeline_depth` 2). What the worker needs, it
has by then: the last tokens stay in its memory. What is not known yet is who ends meanwhile, by an
end token or because its reader left. Such a sequence ends with the job that it ends in, as ever,
but the follower still computes a token of it that nobody wants. So its slot and blocks stay taken
until the follower has ended: given away, they would be written to behind the new owner's back.

Where sequences lend blocks (lending.py) there is none while somebody has lent some, nor over blocks
that were: it would overwrite what no job has saved. Nobody lends those of a sequence in a job.

A follower changes no decision but one: whoever comes while it waits, waits for it too.
"""

import numpy as np

from muxcluster.core.job import Job, Phase
from muxcluster.kvcache.cache import KvCache
from muxcluster.kvcache.model import Shortage
from muxcluster.scheduling.lanes.desk import Desk, Lane


class Following:
    """Makes followers of running jobs."""

    def __init__(self, kv: KvCache, desk: Desk, lane: Lane) -> None:
        self._models = {model.name: model for model in desk.models}
        self._kv = kv
        self._desk = desk
        self._lane = lane

    def next_jobs(self) -> list[Job]:
        """Followers of the running jobs that have none, where it is certain what comes next.

        Call it when the lane has launched all it can: who could decode and is in no job waits for
        a place, or for blocks, and has a claim to what the running jobs leave.
        """
        desk = self._desk
        if desk.shares.is_exclusive or any(map(desk.has_decode_work, desk.models)):
            return []
        followers = map(self._follower, desk.shares.running)
        return [job for job in followers if job is not None]

    def _follower(self, job: Job) -> Job | None:
        """None where something else may come, or blocks are short."""
        desk, table = self._desk, self._models[job.model].slots
        if desk.shares.follower(job) is not None or not self._is_plain(job):
            return None
        if not (desk.decodes_all(self._models[job.model]) and self._lane.may_follow(desk, job)):
            return None
        slots = job.rows.slots
        stays = table.is_live[slots] & (table.num_tokens[slots] + 1 < table.max_total[slots])
        if not stays.any():
            return None
        if not stays.all():
            slots = slots[stays]
        starts = table.num_computed[slots] + np.int32(1)
        scaling = self._models[job.model].scaling
        if scaling is not None and scaling.num_fitting(starts) < len(slots):
            return None
        grown = self._kv.grow(job.model, slots, starts + np.int32(1))
        return None if isinstance(grown, Shortage) else desk.follow(job, slots, starts, grown)

    def _is_plain(self, job: Job) -> bool:
        """True where all of its rows decode one token, and none is known to be in trouble."""
        table, rows = self._models[job.model].slots, job.rows
        if job.phase is Phase.PREFILL or job.max_steps > 1 or job.copies:
            return False
        if table.has_aborted or table.has_suspect(rows.slots) or self._kv.shares(job.model):
            return False
        if job.phase is Phase.DECODE:
            return True
        is_prefilling = table.num_prefilling and bool(table.is_prefilling[rows.slots].any())
        return not is_prefilling
