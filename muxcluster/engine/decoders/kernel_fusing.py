"""Builds a `KernelDecoder` from a loaded model and checks that its logits are the same."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from muxcluster.core.unitspec import ModelSpec
from muxcluster.engine.decoders.kernel_decoder import KernelDecoder, KernelLayer, Linear, Norm
from muxcluster.engine.decoders.torch_fusing import product_of
from muxcluster.engine.forward.attention import LayerCall
from muxcluster.engine.forward.paged_forward import Forward, TokenForward
from muxcluster.engine.load.merging import Product, merge_products, merged, same_input
from muxcluster.engine.load.packing_cpu import pack_linears
from muxcluster.engine.load.parity import Foreign, NotFusible, ask, has_llama_layers
from muxcluster.engine.quantised.linear import has_rounding
from muxcluster.engine.vision.loading import plain_forward
from muxcluster.kernels.rotary import HeadNorms

logger = logging.getLogger(__name__)


def forward_on_gpu(model: nn.Module, spec: ModelSpec, *, fuses: bool = True) -> TokenForward:
    """Return a forward of `model` on our kernels if they fit and prove it, else on its own modules.

    Logs why a model stays on its own modules. fuses: False always returns the model's own modules.
    """
    if fuses:
        try:
            return kernel_decoder(model, spec.max_model_len)
        except NotFusible as reason:
            logger.warning("%s runs unfused, on transformers' own layers: %s", spec.name, reason)
    return plain_forward(model, spec)


@torch.inference_mode()
def kernel_decoder(model: Foreign, num_positions: int) -> KernelDecoder:
    """Return `model` on our kernels; its weights are merged in place if they are not yet.

    num_positions: most tokens of a sequence. Raises NotFusible where the model is of an unknown
    kind or the logits of random tokens differ; the model is then usable as before.
    """
    if not has_llama_layers(model):
        raise NotFusible(f"{type(model).__name__} as configured is of no kind that we know")
    merge_products(model, str(next(model.parameters()).device))
    before = ask(Forward(model), model, num_positions)
    decoder = _decoder(model, before.calls, [_merged(layer) for layer in model.model.layers])
    before.check(ask(decoder, model, num_positions))
    return decoder


@torch.inference_mode()
def packed_decoder(model: Foreign, num_positions: int) -> KernelDecoder:
    """Return one rank's part of a model on our kernels' CPU twins, merged and packed for oneDNN.

    model: a model that `is_fusible` accepts; it loses its weights layer by layer. num_positions:
    most tokens of a sequence. Raises NotTheSame where the logits of random tokens differ; the model
    is then unusable.
    """
    before = ask(Forward(model), model, num_positions)
    rounds_inputs = has_rounding(model)
    products = [_packed(layer) for layer in model.model.layers]
    pack_linears(model)
    decoder = _decoder(model, before.calls, products)
    before.check(ask(decoder, model, num_positions), rounds_inputs=rounds_inputs)
    return decoder


@dataclass(frozen=True, slots=True, eq=False)
class _Products:
    # heads, kv_heads: of this rank
    heads: int
    kv_heads: int
    qkv: Linear
    gate_up: Linear


def _heads(layer: Foreign) -> tuple[int, int]:
    attention = layer.self_attn
    rows = (each.out_features for each in (attention.q_proj, attention.k_proj))
    heads, kv_heads = (number // attention.head_dim for number in rows)
    return heads, kv_heads


def _merged(layer: Foreign) -> _Products:
    found: list[Product] = []
    for linears in same_input(layer):
        product = merged(linears)
        if product is None:
            kinds = ", ".join(sorted({type(each).__name__ for each in linears}))
            raise NotFusible(f"{len(linears)} linears ({kinds}) of a layer cannot be merged")
        found.append(product)
    return _Products(*_heads(layer), *found)


def _packed(layer: Foreign) -> _Products:
    """Pack the merged products; the layer loses the linears that were merged."""
    products = (product_of(linears) for linears in same_input(layer))
    packed = _Products(*_heads(layer), *products)
    for name in ("q_proj", "k_proj", "v_proj"):
        delattr(layer.self_attn, name)
    for name in ("gate_proj", "up_proj"):
        delattr(layer.mlp, name)
    return packed


def _decoder(
    model: Foreign, calls: Sequence[LayerCall], products: Sequence[_Products]
) -> KernelDecoder:
    body = model.model
    layers = zip(body.layers, calls, products, strict=True)
    return KernelDecoder(
        model=model,
        embeddings=body.embed_tokens,
        rotary=body.rotary_emb,
        layers=tuple(_layer(*each) for each in layers),
        norm=_norm(body.norm),
        head=model.lm_head,
    )


def _layer(layer: Foreign, call: LayerCall, products: _Products) -> KernelLayer:
    return KernelLayer(
        call=call,
        heads=products.heads,
        kv_heads=products.kv_heads,
        input_norm=_norm(layer.input_layernorm),
        qkv=products.qkv,
        head_norms=_head_norms(layer.self_attn),
        output=layer.self_attn.o_proj,
        mlp_norm=_norm(layer.post_attention_layernorm),
        gate_up=products.gate_up,
        down=layer.mlp.down_proj,
    )


def _norm(norm: Foreign) -> Norm:
    return Norm(norm.weight.detach(), norm.variance_epsilon)


def _head_norms(attention: Foreign) -> HeadNorms | None:
    if not hasattr(attention, "q_norm"):
        return None
    query, key = attention.q_norm, attention.k_norm
    if query.variance_epsilon != key.variance_epsilon:
        raise NotFusible("norms of queries and keys have different epsilons")
    return HeadNorms(query.weight.detach(), key.weight.detach(), query.variance_epsilon)
