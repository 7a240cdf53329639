"""Attention sinks on the CPU: a learnt logit per query head that joins the softmax's denominator.

A sink has no value, so it takes a share of the weights and adds nothing. What the keys keep follows
from the logarithm of their own sum of exponentials; hence sinks are applied once, after everything
that a row attends to was merged.
"""

from typing import Protocol

import torch
from torch import Tensor


class Plan(Protocol):
    """How the rows of one decode step attend, such as `DecodePlan` and `PrefixPlan`."""

    def attend(
        self,
        query: Tensor,
        halves: Tensor,
        layer: int,
        *,
        scale: float,
        soft_cap: float | None,
        log_sums: Tensor | None = None,
    ) -> Tensor: ...


def share_of_keys(log_sums: Tensor, sinks: Tensor) -> Tensor:
    """Return which share of the weights the keys keep beside sinks, of the shape of `log_sums`.

    log_sums: logarithms of the sums of the exponentials of the keys' scores. sinks: of any floating
    type; the two are broadcast.
    """
    return torch.sigmoid(log_sums - sinks.to(log_sums.dtype))


def attend_with_sinks(
    plan: Plan,
    query: Tensor,
    halves: Tensor,
    layer: int,
    *,
    scale: float,
    soft_cap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """As `plan.attend`. query: [rows, kv_heads, group, head_dim].

    sinks: [kv_heads * group], None: the model has none.
    """
    if sinks is None:
        return plan.attend(query, halves, layer, scale=scale, soft_cap=soft_cap)
    wide = torch.promote_types(query.dtype, torch.float32)
    # a row without keys has no sum, and zeros to weigh
    log_sums = torch.zeros(query.shape[:3], dtype=wide, device=query.device)
    attended = plan.attend(query, halves, layer, scale=scale, soft_cap=soft_cap, log_sums=log_sums)
    share = share_of_keys(log_sums, sinks.view(query.shape[1:3]))
    return attended.mul_(share.unsqueeze(-1))
