"""Our attention on transformers' attention interface: keys and values live in the unit's pool.

The batch is a keyword argument of the model's forward, so nothing is global but the registration of
the attention's name.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from torch import Tensor, nn
from transformers import AttentionInterface

from muxcluster.engine.forward.latents import attend_absorbed, value_width

# The `attn_implementation` of our models. No mask function is registered under it, so transformers
# builds no mask: causality and sliding windows are the kernels' own.
ATTENTION_NAME = "muxcluster"


@dataclass(frozen=True, slots=True)
class LayerCall:
    """How one layer asks for attention."""

    layer: int
    scale: float  # factor on the scores
    sliding_window: int | None  # the last so many keys are seen, None means all
    soft_cap: float | None  # as in `paged_decode`
    extras: frozenset[str] = frozenset()  # further arguments of the layer that are not None
    # how many of a latent's elements, the first ones, are its value; None: no latents are kept
    value_width: int | None = None
    # [heads], a logit of each query head that joins the denominator of its softmax; None: none.
    # Equal calls may have other ones.
    sinks: Tensor | None = field(default=None, compare=False)


class LayerAttention(Protocol):
    """Attention of one forward, passed as `attention_batch`; called once per layer."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: LayerCall) -> Tensor:
        """Return attention [tokens, heads, head_dim].

        query: [tokens, heads, head_dim]; key, value: [tokens, kv_heads, head_dim].
        """
        ...

    def attend_latent(self, query: Tensor, latent: Tensor, call: LayerCall) -> Tensor:
        """Return attention [tokens, heads, call.value_width] of a layer that keeps latents.

        query: [tokens, heads, width]; latent: [tokens, width], contiguous.
        """
        ...


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Implement transformers' interface: query, key and value [1, heads, tokens, head_dim].

    Returns [1, tokens, heads, head_dim] and no weights. Raises KeyError where the model did not
    pass our batch on.
    """
    batch: LayerAttention = options.pop("attention_batch")
    scale = options.pop("scaling", None)
    call = LayerCall(
        layer=_layer_of(module),
        scale=query.shape[-1] ** -0.5 if scale is None else scale,
        sliding_window=options.pop("sliding_window", None),
        soft_cap=options.pop("softcap", None),
        sinks=options.pop("s_aux", None),
        extras=frozenset(
            name
            for name, option in (("attention_mask", attention_mask), *options.items())
            if option is not None
        ),
        value_width=value_width(module),
    )
    if call.value_width is not None:
        return attend_absorbed(module, query, key, partial(batch.attend_latent, call=call)), None
    output = batch.attend(_by_token(query), _by_token(key), _by_token(value), call)
    return output.unsqueeze(0), None


def _by_token(heads: Tensor) -> Tensor:
    """Return [1, heads, tokens, head_dim] as [tokens, heads, head_dim]."""
    return heads[0].transpose(0, 1)


def _layer_of(module: nn.Module) -> int:
    """Return its place among layers of attention, where others keep states: see `keep_states`."""
    index = getattr(module, "kv_layer", module.layer_idx)
    assert isinstance(index, int), "an attention layer without its index"
    return index


AttentionInterface.register(ATTENTION_NAME, _attention)
