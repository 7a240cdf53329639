"""The orders a batch job may run in, by name: plans and their baselines."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from muxcluster.offline.blend.densities import Work, leaf_work
from muxcluster.offline.blend.lengths import OutputLengths
from muxcluster.offline.blend.pieces import Pieces, group_pieces
from muxcluster.offline.blend.plan import forecast, plan_pieces
from muxcluster.offline.blend.shared_reads import shared_reads
from muxcluster.offline.order.one_level import best_prefixes
from muxcluster.offline.prefix.groups import PrefixGroups, group_by_prefix, order_by_decoding
from muxcluster.offline.prefix.tree import PrefixTree
from muxcluster.placement.cost.resources import ResourceModel

Order = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class OfflineJob:
    """All that an order may depend on."""

    tree: PrefixTree
    outputs: OutputLengths
    model: ResourceModel
    size_bytes: float  # KV that the batch may hold; more than 0
    seed: int = 0
    # Attention reads a prefix of so many tokens or more once for all requests; 0: never.
    shared_prefix_tokens: int = 0

    def leaf_work(self) -> Work:
        """Return the work of each request without its shared prefix."""
        tree, outputs = self.tree, self.outputs
        spared = shared_reads(tree, self.model, outputs, self.size_bytes, self.shared_prefix_tokens)
        return leaf_work(tree, self.model, outputs, spared)


def order_requests(job: OfflineJob, name: str) -> Order:
    """Return prompt numbers in the order they start, int64 [n].

    Raises ValueError for an unknown name.
    """
    if name not in ORDERS:
        raise ValueError(f"unknown order {name!r}: expected one of {', '.join(ORDERS)}")
    return ORDERS[name](job)


def _fcfs(job: OfflineJob) -> Order:
    return np.arange(len(job.tree.order))


def _random(job: OfflineJob) -> Order:
    return np.random.default_rng(job.seed).permutation(len(job.tree.order))


def _dfs(job: OfflineJob) -> Order:
    return job.tree.order


def _batchllm(job: OfflineJob) -> Order:
    return prefix_groups(job).requests


def _blend(job: OfflineJob) -> Order:
    return _forecast(job, blend_pieces(job))


def _blend_groups(job: OfflineJob) -> Order:
    return _forecast(job, blend_group_pieces(job))


def _forecast(job: OfflineJob, pieces: Pieces) -> Order:
    return forecast(job.tree, job.model, job.outputs, pieces, job.size_bytes)


def blend_pieces(job: OfflineJob) -> Pieces:
    """Return BlendServe's pieces: sub-trees, split where little is computed again."""
    return plan_pieces(job.tree, job.model, job.leaf_work())


def blend_group_pieces(job: OfflineJob) -> Pieces:
    """Return BatchLLM's prefix groups as pieces, sorted by density."""
    return group_pieces(job.tree, job.model, job.leaf_work(), prefix_groups(job))


def prefix_groups(job: OfflineJob) -> PrefixGroups:
    """Return BatchLLM's groups in its order."""
    tree = job.tree
    lengths, outputs = np.empty_like(tree.lengths), np.empty_like(job.outputs.mean)
    lengths[tree.order], outputs[tree.order] = tree.lengths, job.outputs.mean
    return order_by_decoding(group_by_prefix(tree, best_prefixes(tree)), lengths, outputs)


# dfs: the tree from left to right, so that every prefix is computed once and freed at once.
ORDERS: Mapping[str, Callable[[OfflineJob], Order]] = MappingProxyType(
    {
        "blend": _blend,
        "blend-groups": _blend_groups,
        "batchllm": _batchllm,
        "dfs": _dfs,
        "fcfs": _fcfs,
        "random": _random,
    }
)
