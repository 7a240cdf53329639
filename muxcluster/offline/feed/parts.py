"""A planned job as the plain message that its unit gets, and the feeder made of it there."""

from dataclasses import asdict, fields

import numpy as np
from numpy.typing import NDArray

from muxcluster.core.batch_part import BatchPart
from muxcluster.offline.blend.lengths import known_lengths
from muxcluster.offline.feed.feeder import BatchFeeder
from muxcluster.offline.order.orders import OfflineJob
from muxcluster.offline.prefix.tree import PrefixTree
from muxcluster.placement.cost.resources import ResourceModel


def part_of(
    part_id: str, model: str, job: OfflineJob, order: str, known: NDArray[np.float64]
) -> BatchPart:
    """Return the part that holds all of `job`.

    known: float64 [n] by place, output tokens of each request, NaN where not known; `job.outputs`
    are expected until there are results.
    """
    return BatchPart(
        part_id,
        model,
        order,
        {each.name: getattr(job.tree, each.name) for each in fields(PrefixTree)},
        job.outputs.mean,
        known,
        asdict(job.model),
        job.size_bytes,
        job.shared_prefix_tokens,
        job.seed,
    )


def feeder_of_part(part: BatchPart) -> BatchFeeder:
    """Return a feeder of the part's lines whose plans the caller renews.

    Raises ValueError for an unknown order.
    """
    job = OfflineJob(
        PrefixTree(**part.tree),
        known_lengths(part.expected),
        _resources(part),
        part.size_bytes,
        part.seed,
        part.shared_prefix_tokens,
    )
    return BatchFeeder(job, part.order, part.known, renews_itself=False)


def _resources(part: BatchPart) -> ResourceModel:
    given = part.resources
    return ResourceModel(
        given["token_s"], given["attention_s"], given["kv_s"], round(given["kv_bytes"])
    )
