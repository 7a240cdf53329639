"""Prefill beside the running batch, prompts of similar lengths together (BATON §4.2)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from muxcluster.engine.dense.axes import CacheAxes
from muxcluster.engine.dense.batch import KeptRow, end_aligned
from muxcluster.engine.dense.forward import DenseForward
from muxcluster.engine.dense.padding import Padding

MOST_PADDING = 0.25  # padding that a group of prompts may have, as a share of its tokens


@dataclass(frozen=True, slots=True, eq=False)
class Prefilled:
    """A prefilled prompt: its cache and logits."""

    row: KeptRow  # what `DenseBatch.embed` takes
    # fp32 [vocab] of the last token, or [tokens, vocab] of all where they were asked for
    logits: Tensor


def similar(lengths: Sequence[int], *, most_padding: float) -> list[list[int]]:
    """Return indices of `lengths` in groups, each index once; the longest first.

    most_padding: most padding of a group as a share of its tokens; 0: equal lengths only.
    """
    groups: list[list[int]] = []
    tokens = 0
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        own = lengths[index]
        if groups:
            group = groups[-1]
            padded = lengths[group[0]] * (len(group) + 1)
            if padded <= (1 + most_padding) * (tokens + own):
                group.append(index)
                tokens += own
                continue
        groups.append([index])
        tokens = own
    return groups


def prefill(
    forward: DenseForward,
    axes: CacheAxes,
    prompts: Sequence[NDArray[np.integer]],
    *,
    most_padding: float = MOST_PADDING,
    all_logits: bool = False,
) -> list[Prefilled]:
    """Prefill the prompts (int [tokens ≥ 1] each); return the results in their order.

    most_padding: as in `similar`; 0 for models whose states padding would change.
    """
    found: dict[int, Prefilled] = {}
    for group in similar([len(prompt) for prompt in prompts], most_padding=most_padding):
        lengths = [len(prompts[index]) for index in group]
        padding = Padding.of(lengths)
        ids = end_aligned([prompts[index] for index in group], padding.length)
        output = forward.run(ids, padding, None, all_logits=all_logits)
        for row, index in enumerate(group):
            _, columns = padding.selected([row])
            cache = axes.selected(output.cache, [row], columns.tolist())
            logits = output.logits[row, -lengths[row] :] if all_logits else output.logits[row]
            found[index] = Prefilled(KeptRow(lengths[row], cache), logits)
    return [found[index] for index in range(len(prompts))]
