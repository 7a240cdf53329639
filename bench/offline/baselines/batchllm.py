"""BatchLLM's plan of a batch job (arXiv 2412.03594): prefix groups, ordered, each prefix once."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bench.offline.baselines.lifetimes import Lifetimes, prefix_lifetimes
from muxcluster.offline.order.one_level import best_prefixes
from muxcluster.offline.prefix.groups import PrefixGroups, group_by_prefix, order_by_decoding
from muxcluster.offline.prefix.prompts import Prompts
from muxcluster.offline.prefix.tree import PrefixTree, build_tree


@dataclass(frozen=True, slots=True, eq=False)
class BatchPlan:
    """The order in which requests start, the prefixes they share, and how long these are kept."""

    tree: PrefixTree
    # In the order they run. One attention call can share this one level of prefixes; computed keys
    # and values are reused at every level of the tree.
    groups: PrefixGroups
    lifetimes: Lifetimes

    @property
    def requests(self) -> NDArray[np.int64]:
        """Return prompt numbers in the order they start, int64 [n]."""
        return self.groups.requests

    @property
    def saving_ratio(self) -> float:
        """Return the share of prompt tokens not computed (Eq. 2), every node computed once."""
        return self.tree.saved_tokens / self.tree.prompt_tokens

    @property
    def one_level_ratio(self) -> float:
        """Return the same if only the groups' prefixes were reused, as in the paper."""
        return self.groups.saved_tokens / self.tree.prompt_tokens


def plan_batch(
    prompts: Prompts,
    output_tokens: NDArray[np.float64],
    granularity: int = 1,
    own_tokens: int = 0,
) -> BatchPlan:
    """Plan `prompts`; each is expected to yield `output_tokens` (float64 [n]).

    granularity, own_tokens: as for `build_tree`.
    """
    tree = build_tree(prompts, granularity, own_tokens)
    groups = group_by_prefix(tree, best_prefixes(tree))
    ordered = order_by_decoding(groups, prompts.lengths, output_tokens)
    return BatchPlan(tree, ordered, prefix_lifetimes(tree, ordered.requests))
