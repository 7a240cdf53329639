"""The orders of a batch job as lines that a `DualScanner` works on while the job runs."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from muxcluster.offline.blend.scan import DualScanner, Line, line_of, plain_line
from muxcluster.offline.order.orders import (
    OfflineJob,
    blend_group_pieces,
    blend_pieces,
    order_requests,
    prefix_groups,
)


def plan_line(job: OfflineJob, name: str) -> Line:
    """Return all requests in the order `name`. Raises ValueError for an unknown one."""
    plan = _PLANNED.get(name)
    if plan is not None:
        return plan(job)
    places = _places(job, order_requests(job, name))
    return plain_line(places, np.arange(len(places)))


def sample_line(job: OfflineJob, sample: NDArray[np.int64]) -> Line:
    """Return a line of the places `sample` (int64), then of the tree from left to right.

    The sample makes lengths known; the rest needs no lengths until the sample has ended.
    """
    is_sampled = np.zeros(len(job.tree.order), dtype=np.bool_)
    is_sampled[sample] = True
    places = np.concatenate((np.flatnonzero(is_sampled), np.flatnonzero(~is_sampled)))
    return plain_line(places, np.arange(len(places)))


def is_planned(name: str) -> bool:
    """Return True where the order depends on output lengths."""
    return name in _PLANNED


def keeps_families(name: str) -> bool:
    """Return True where requests that share a prefix start near each other.

    Then the prefix is kept until the last of them. An order that scatters them would fill the
    memory with prefixes.
    """
    return name not in ("fcfs", "random")


def replanned(line: Line, scanner: DualScanner, is_out: NDArray[np.bool_]) -> Line:
    """Return what is left of a new plan `line`; `scanner` has worked on the last plan.

    is_out: bool [n] by place, requests that were handed out. A piece that was begun continues at
    its end of the line; otherwise its prefix would be kept for long, or computed twice.
    """
    head, tail = scanner.begun()
    position = np.empty_like(line.places)
    position[line.places] = np.arange(len(position))
    is_left = ~is_out
    is_left[head] = is_left[tail] = False
    between = np.flatnonzero(is_left[line.places])
    return line.take(np.concatenate((position[head], between, position[tail])))


def _batchllm(job: OfflineJob) -> Line:
    groups = prefix_groups(job)
    return plain_line(_places(job, groups.requests), np.repeat(np.arange(len(groups)), groups.size))


def _blend(job: OfflineJob) -> Line:
    return line_of(blend_pieces(job))


def _blend_groups(job: OfflineJob) -> Line:
    return line_of(blend_group_pieces(job))


def _places(job: OfflineJob, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    places = np.empty_like(job.tree.order)
    places[job.tree.order] = np.arange(len(places))
    found: NDArray[np.int64] = places[numbers]
    return found


# The orders that depend on output lengths.
_PLANNED: Mapping[str, Callable[[OfflineJob], Line]] = MappingProxyType(
    {"blend": _blend, "blend-groups": _blend_groups, "batchllm": _batchllm}
)
