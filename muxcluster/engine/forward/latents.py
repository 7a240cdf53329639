"""Multi-head latent attention on transformers' own layers, computed over the latents themselves.

A token keeps its latent and its rotary key in the pool, not the keys and values that every head
makes of them. The products that would make them are applied to the queries before attention, and to
its results behind it ("absorbed", DeepSeek-V2, § 2.1.2), at prefill too: what a chunk or a cached
prefix left in the pool is then read as it lies, where plain attention would expand it anew for each
chunk.
"""

# Plain attention to a long prompt's own tokens has about a third of the FLOPs.

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

Foreign = Any  # a module of transformers, with attributes that mypy does not know

# Attention [tokens, heads, value_width] of queries [tokens, heads, width] to latents.
Attend = Callable[[Tensor, Tensor], Tensor]


class Expansion(nn.Module):
    """A linear that makes keys and values of latents: its weight is read, it is not applied."""

    # No nn.Linear, so that nothing packs the weight into a layout that cannot be read.

    bias = None

    def __init__(self, whole: nn.Linear) -> None:
        super().__init__()
        self.weight = whole.weight  # [heads * (key + value elements), elements of a latent]

    def forward(self, latents: Tensor) -> Tensor:
        """Map [..., elements of a latent] to [..., heads * (key + value elements)]: for checks."""
        return linear(latents, self.weight)


def keep_latents(model: nn.Module) -> None:
    """Let latent attention of `model` hand on its latents in place of expanded keys and values.

    Changes the attention modules that have a step of their own to expand them, as those of
    transformers do; idempotent.
    """
    for module in list(model.modules()):
        whole: Foreign = getattr(module, "kv_b_proj", None)
        if _is_plain(whole) and hasattr(module, "expand_kv"):
            changed: Foreign = module
            changed.kv_b_proj = Expansion(whole)
            changed.expand_kv = _kept


def _is_plain(module: Foreign) -> bool:
    return isinstance(module, nn.Linear) and getattr(module, "bias", None) is None


def value_width(module: Foreign) -> int | None:
    """Return how many of a latent's elements, the first ones, are its value in this layer.

    None where `keep_latents` has not changed it.
    """
    if getattr(module, "expand_kv", None) is not _kept:
        return None
    width: int = module.kv_lora_rank
    return width


def attend_absorbed(module: Foreign, query: Tensor, latents: Tensor, attend: Attend) -> Tensor:
    """Return attention [1, tokens, heads, value elements] of a layer that keeps latents.

    query: [1, heads, tokens, elements], a head's key elements without positions first, its rotary
    ones behind them. latents: [1, 1, tokens, width].
    """
    key_weight, value_weight = _weights(module, query.shape[1])
    sizes = [module.qk_nope_head_dim, module.qk_rope_head_dim]
    plain, rotary = torch.split(query[0], sizes, dim=-1)
    in_latents = torch.bmm(plain, key_weight)
    absorbed = torch.cat((in_latents, rotary), dim=-1).transpose(0, 1)
    attended = attend(absorbed, latents[0, 0])
    values = torch.bmm(attended.transpose(0, 1), value_weight.transpose(1, 2))
    return values.transpose(0, 1).unsqueeze(0)


def expands_otherwise(module: Foreign, latents: Tensor, rotary_keys: Tensor) -> float:
    """Return how far keys and values of latents are from those that the layer itself makes of them.

    Relative to the largest element. latents, rotary_keys: [1, 1, tokens, elements].
    """
    theirs = torch.cat(type(module).expand_kv(module, latents, rotary_keys), dim=-1)[0]
    weights = _weights(module, len(theirs))
    plain, values = (torch.matmul(latents[0], each.transpose(1, 2)) for each in weights)
    rotary = rotary_keys[0].expand(len(theirs), -1, -1)
    ours = torch.cat((plain, rotary, values), dim=-1)
    return float((ours - theirs).abs().max() / theirs.abs().max())


def _weights(module: Foreign, num_heads: int) -> tuple[Tensor, Tensor]:
    """Return the heads' matrices that make keys, and values, of latents: views
    [heads, elements, elements of a latent]."""
    weight: Tensor = module.kv_b_proj.weight
    sizes = [module.qk_nope_head_dim, module.v_head_dim]
    keys, values = torch.split(weight.view(num_heads, sum(sizes), -1), sizes, dim=1)
    return keys, values


def _kept(latents: Tensor, rotary_keys: Tensor) -> tuple[Tensor, Tensor]:
    """Stand in for a module's `expand_kv`: latents with rotary keys behind them, twice.

    latents, rotary_keys: [1, 1, tokens, elements]. The second one, in the place of values, is not
    read.
    """
    whole = torch.cat((latents, rotary_keys), dim=-1)
    return whole, whole
