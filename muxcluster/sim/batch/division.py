"""A batch job divided over the units that serve its model."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from muxcluster.offline.blend.divide import divide
from muxcluster.offline.blend.pieces import cut
from muxcluster.offline.choice import JobSummary, Unplanned, summary_of
from muxcluster.offline.order.orders import OfflineJob
from muxcluster.offline.prefix.prompts import take_prompts
from muxcluster.sim.batch.setting import Setting


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """The part of a job that one unit runs."""

    setting: Setting
    job: Unplanned
    planned: OfflineJob  # `job` with its tree
    summary: JobSummary
    numbers: NDArray[np.int64]  # int64 [n], of the whole job's prompts


def divide_job(job: Unplanned, whole: OfflineJob, settings: Sequence[Setting]) -> list[Part]:
    """Divide `job`, whose tree is in `whole`, over the units of `settings` (BlendServe §6.1).

    Families stay together and every part has about the density of the whole, so that all units
    end at about the same time. Requests stay in the order of arrival. Units without requests (there
    are fewer requests than units) are left out.
    """
    if len(settings) == 1:
        numbers = np.arange(len(job.prompts))
        return [Part(settings[0], job, whole, summary_of(whole), numbers)]
    leaves = whole.leaf_work()
    resources = [setting.resources for setting in settings]
    speeds = np.array([(1 / each.token_s, 1 / each.kv_s) for each in resources])
    parts = divide(cut(whole.tree, whole.model, leaves), len(settings), speeds)
    return [
        _part(job, np.sort(whole.tree.order[places]), setting)
        for places, setting in zip(parts, settings, strict=True)
        if len(places)
    ]


def _part(job: Unplanned, numbers: NDArray[np.int64], setting: Setting) -> Part:
    part = replace(
        job,
        prompts=take_prompts(job.prompts, numbers),
        output_tokens=job.output_tokens[numbers],
        model=setting.resources,
        size_bytes=setting.size_bytes,
    )
    planned = part.with_tree()
    return Part(setting, part, planned, summary_of(planned), numbers)
