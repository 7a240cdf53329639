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
from muxcluster.kvcache.model import Shortage
from muxcluster.scheduling.jobs import JobBuilder
from muxcluster.scheduling.lanes.view import Lane, LaneView, turns_before
from muxcluster.scheduling.packing.batch import Packing


class Pipelining:
    """Makes followers of running jobs."""

    def __init__(self, view: LaneView, lane: Lane, packing: Packing, builder: JobBuilder) -> None:
        self._models = {model.name: model for model in view.models}
        self._view = view
        self._lane = lane
        self._packing = packing
        self._builder = builder

    def next_jobs(self) -> list[Job]:
        """Followers of the running jobs that have none, where it is certain what comes next.

        Call it when the lane has launched all it can: who could decode and is in no job waits for
        a place, or for blocks, and has a claim to what the running jobs leave.
        """
        view = self._view
        if view.shares.is_exclusive or any(map(view.has_decode_work, view.models)):
            return []
        followers = map(self._follower, view.shares.running)
        return [job for job in followers if job is not None]

    def _follower(self, job: Job) -> Job | None:
        """None where something else may come, or blocks are short."""
        view, model = self._view, self._models[job.model]
        table = model.slots
        if view.shares.follower(job) is not None or not self._is_plain(job):
            return None
        if not self._packing.decodes_all(model) or turns_before(self._lane, view, job) is None:
            return None
        slots = job.rows.slots
        stays = table.is_live[slots] & (table.num_tokens[slots] + 1 < table.max_total[slots])
        if not stays.any():
            return None
        if not stays.all():
            slots = slots[stays]
        starts = table.num_computed[slots] + np.int32(1)
        if model.scaling is not None and model.scaling.num_fitting(starts) < len(slots):
            return None
        grown = model.kv.grow(slots, starts + np.int32(1))
        if isinstance(grown, Shortage):
            return None
        follower = self._builder.follow(job, model, slots, starts, grown)
        view.shares.follow(follower)
        view.count(follower)
        return follower

    def _is_plain(self, job: Job) -> bool:
        """True where all of its rows decode one token, and none is known to be in trouble."""
        model, rows = self._models[job.model], job.rows
        table = model.slots
        if job.phase is Phase.PREFILL or job.max_steps > 1 or job.copies:
            return False
        if table.has_aborted or table.has_suspect(rows.slots) or model.kv.lies_over_lent:
            return False
        if job.phase is Phase.DECODE:
            return True
        is_prefilling = table.num_prefilling and bool(table.is_prefilling[rows.slots].any())
        return not is_prefilling
