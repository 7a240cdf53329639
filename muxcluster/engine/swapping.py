"""Our kernels in the place of transformers' chains of small operators, module by module.

Of each decoder layer: RMSNorm, the residual sum before the second norm, rotary embedding in place,
and the activation of the gate times the up projection. Projections stay the modules they are, and
so does what hangs on them.
"""

import logging
from collections.abc import Sequence
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from kernels.add_rms_norm import add_rms_norm
from kernels.rotary import rotary
from kernels.silu_mul import silu_mul
from muxcluster.core.unitspec import ModelSpec
from muxcluster.engine.attention import LayerAttention, LayerCall
from muxcluster.engine.forward import Forward
from muxcluster.engine.sameness import Foreign, NotTheSame, ask, has_llama_layers

logger = logging.getLogger(__name__)


def forward_on_gpu(model: nn.Module, spec: ModelSpec, *, swaps: bool) -> Forward:
    """The model as it is, or on our kernels where `swaps` says so, they fit, and prove it."""
    try:
        if swaps and not swap_modules(model, spec.max_model_len):
            logger.info("%s keeps its modules: they are not of a known kind", spec.name)
    except NotTheSame as error:
        logger.warning("%s keeps its modules: %s", spec.name, error)
    return Forward(model)


@torch.inference_mode()
def swap_modules(model: Foreign, num_positions: int) -> bool:
    """Whether `model` is of a known kind, and now runs on our kernels.

    num_positions: most tokens of a sequence.
    Raises NotTheSame where the logits of random tokens have changed; the model is then as before.
    """
    if not has_llama_layers(model):
        return False
    before = ask(Forward(model), model, num_positions)
    swapped = _swap(model, before.calls)
    try:
        before.check(ask(Forward(model), model, num_positions))
    except NotTheSame:
        for module in swapped:
            del module.forward  # the class's own shows again
        raise
    return True


def _swap(model: Foreign, calls: Sequence[LayerCall]) -> list[Foreign]:
    """The modules that now have a forward of their own; calls: of their layers, in order."""
    swapped: list[Foreign] = []

    def put(forward: Any, module: Foreign) -> None:
        module.forward = MethodType(forward, module)
        swapped.append(module)

    for layer, call in zip(model.model.layers, calls, strict=True):
        layer.self_attn.layer_call = call
        put(_layer, layer)
        put(_attention, layer.self_attn)
        put(_mlp, layer.mlp)
        put(_norm, layer.input_layernorm)
        if hasattr(layer.self_attn, "q_norm"):
            put(_norm, layer.self_attn.q_norm)
            put(_norm, layer.self_attn.k_norm)
    put(_norm, model.model.norm)
    return swapped


def _layer(
    layer: Foreign,
    hidden_states: Tensor,
    *,
    position_embeddings: tuple[Tensor, Tensor],
    attention_batch: LayerAttention,
    **_options: Any,
) -> Tensor:
    """hidden_states: [1, tokens, width], overwritten by what is returned."""
    normed = layer.input_layernorm(hidden_states)
    attended = layer.self_attn(normed, position_embeddings, attention_batch)
    residual, norm = hidden_states[0], layer.post_attention_layernorm
    normed = add_rms_norm(attended, norm.weight, norm.variance_epsilon, residual)
    residual.add_(layer.mlp(normed))
    return hidden_states


def _attention(
    attention: Foreign,
    hidden_states: Tensor,
    position_embeddings: tuple[Tensor, Tensor],
    batch: LayerAttention,
) -> Tensor:
    """hidden_states: [1, tokens, width]; [tokens, width] is returned."""
    tokens = hidden_states.shape[1]
    heads = (tokens, -1, attention.head_dim)
    query = attention.q_proj(hidden_states).view(heads)
    key = attention.k_proj(hidden_states).view(heads)
    value = attention.v_proj(hidden_states).view(heads)
    if hasattr(attention, "q_norm"):
        query, key = attention.q_norm(query), attention.k_norm(key)
    cos, sin = position_embeddings
    rotary(query, key, cos[0], sin[0])
    attended = batch.attend(query, key, value, attention.layer_call)
    projected: Tensor = attention.o_proj(attended.reshape(tokens, -1))
    return projected


def _mlp(mlp: Foreign, hidden_states: Tensor) -> Tensor:
    """[tokens, width] to the same."""
    product = silu_mul(mlp.gate_proj(hidden_states), mlp.up_proj(hidden_states))
    projected: Tensor = mlp.down_proj(product)
    return projected


def _norm(norm: Foreign, hidden_states: Tensor) -> Tensor:
    """[..., width] to the same; for heads the width is theirs."""
    rows = hidden_states.reshape(-1, hidden_states.shape[-1])
    return add_rms_norm(rows, norm.weight, norm.variance_epsilon).view(hidden_states.shape)
