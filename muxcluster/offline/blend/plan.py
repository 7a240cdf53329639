"""BlendServe's plan of a batch job: sorted pieces, and the order they are forecast to start in."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from muxcluster.offline.blend.densities import Work, leaf_work
from muxcluster.offline.blend.lengths import OutputLengths
from muxcluster.offline.blend.pieces import Pieces, cut
from muxcluster.offline.blend.scan import blend_order
from muxcluster.offline.prefix.tree import PrefixTree
from muxcluster.placement.cost.resources import ResourceModel


@dataclass(frozen=True, slots=True, eq=False)
class BlendPlan:
    """The pieces that a `DualScanner` works on, and the order it is expected to give."""

    tree: PrefixTree
    outputs: OutputLengths  # that the plan was made with
    pieces: Pieces
    requests: NDArray[np.int64]  # int64 [n], prompt numbers in the expected order

    @property
    def density(self) -> float:
        """Return compute over memory seconds of the whole job."""
        return float(self.pieces.work.compute_s.sum() / self.pieces.work.memory_s.sum())

    @property
    def sharing_kept(self) -> float:
        """Return saved tokens over those that the tree could save; 1 where nothing is shared."""
        saved = self.tree.saved_tokens
        return 1.0 - self.pieces.recomputed_tokens / saved if saved else 1.0


def plan_blend(
    tree: PrefixTree,
    model: ResourceModel,
    outputs: OutputLengths,
    size_bytes: float,
    recompute_share: float = 0.01,
) -> BlendPlan:
    """Plan a job whose requests yield `outputs`.

    size_bytes: KV that the batch may hold. recompute_share: of the tokens that the tree saves, the
    share that splits may compute again.
    """
    pieces = plan_pieces(tree, model, leaf_work(tree, model, outputs), recompute_share)
    return BlendPlan(tree, outputs, pieces, forecast(tree, model, outputs, pieces, size_bytes))


def plan_pieces(
    tree: PrefixTree, model: ResourceModel, leaves: Work, recompute_share: float = 0.01
) -> Pieces:
    """Return only the pieces. leaves: the work of the requests."""
    return cut_within(tree, model, leaves, recompute_share * tree.saved_tokens)


def forecast(
    tree: PrefixTree,
    model: ResourceModel,
    outputs: OutputLengths,
    pieces: Pieces,
    size_bytes: float,
) -> NDArray[np.int64]:
    """Return prompt numbers in the order that the dual scan of `pieces` should start them."""
    # the mean over requests' lives, to which long ones contribute most
    held = model.kv_bytes * (tree.lengths + outputs.square / outputs.mean / 2)
    return tree.order[blend_order(pieces, held, outputs.mean, size_bytes)]


def cut_within(
    tree: PrefixTree, model: ResourceModel, leaves: Work, recomputed_tokens: float
) -> Pieces:
    """Return pieces that compute at most `recomputed_tokens` again.

    Alg. 2's budget bounds each layer, not their sum: it is halved until the sum fits.
    """
    budget = recomputed_tokens
    while (pieces := cut(tree, model, leaves, budget)).recomputed_tokens > recomputed_tokens:
        budget = budget / 2 if budget >= 1 else 0.0
    return pieces
