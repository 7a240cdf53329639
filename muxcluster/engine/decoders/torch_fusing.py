"""Builds a `FusedDecoder` from a loaded model and checks that its logits are the same."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from muxcluster.engine.adapters.linear import AdaptedLinear, Update
from muxcluster.engine.decoders.torch_decoder import FusedDecoder, FusedLayer, Product, RmsNorm
from muxcluster.engine.forward.attention import LayerCall
from muxcluster.engine.forward.paged_forward import Forward
from muxcluster.engine.load.merging import same_input
from muxcluster.engine.load.packing_cpu import can_pack, packed_linear
from muxcluster.engine.load.parity import Foreign, ask, has_llama_layers
from muxcluster.engine.quantised.cpu_products import fast_linear
from muxcluster.engine.quantised.linear import (
    QuantisedLinear,
    can_join,
    has_rounding,
    joined_linear,
)
from muxcluster.engine.quantised.panel_linear import PanelLinear
from muxcluster.kernels.native.step import DecoderLayer, DecoderStep, Linear, Norm, is_available
from muxcluster.kernels.native.step import Update as NativeUpdate


def is_fusible(model: Foreign) -> bool:
    """Return whether `fuse` knows this kind of model and its weights' type is packed here.

    Linears of the same input must be alike: all in the model's dtype, or all quantised so.
    """
    if not has_llama_layers(model) or not can_pack(next(model.parameters()).dtype):
        return False
    return all(
        all(type(each) is nn.Linear for each in linears) or can_join(linears)
        for layer in model.model.layers
        for linears in same_input(layer)
    )


@torch.inference_mode()
def fuse_checked(model: Foreign, num_positions: int, calls: Sequence[LayerCall]) -> FusedDecoder:
    """As `fuse`, for a model that `fuse` accepted before. calls: of its layers."""
    return _fused(model, calls, num_positions)


@torch.inference_mode()
def fuse(model: Foreign, num_positions: int) -> FusedDecoder:
    """Return the fused model; `model` loses its weights layer by layer.

    model: a model that `is_fusible` accepts. num_positions: most tokens of a sequence. Raises
    NotTheSame where the logits of random tokens differ from those of `model`, which is then
    unusable.
    """
    expected = ask(Forward(model), model, num_positions)
    rounds_inputs = has_rounding(model)
    fused = _fused(model, expected.calls, num_positions)
    expected.check(ask(fused, model, num_positions), rounds_inputs=rounds_inputs)
    return fused


def _fused(model: Foreign, calls: Sequence[LayerCall], num_positions: int) -> FusedDecoder:
    body = model.model
    turns = _turns(body.rotary_emb, num_positions)
    config = model.config
    heads = (config.num_attention_heads, config.num_key_value_heads)
    layers = [_layer(layer, call, heads) for layer, call in zip(body.layers, calls, strict=True)]
    decoder = FusedDecoder(
        embeddings=body.embed_tokens.weight.detach(),
        turns=turns,
        layers=tuple(layers),
        norm=_norm(body.norm),
        head=_head(model.lm_head),
    )
    return replace(decoder, step=native_step(decoder))


def native_step(decoder: FusedDecoder) -> DecoderStep | None:
    """Return the decoder's steps in one call, None where some part has no C++ kernel here."""
    head = _native(decoder.head)
    layers = [_native_layer(layer) for layer in decoder.layers]
    heads = {(layer.heads, layer.kv_heads) for layer in decoder.layers}
    known = [each for each in layers if each is not None]
    if not is_available() or head is None or len(known) < len(layers) or len(heads) != 1:
        return None
    norm = _native_norm(decoder.norm)
    return DecoderStep(known, decoder.embeddings, decoder.turns, norm, head, heads.pop())


def _native_layer(layer: FusedLayer) -> DecoderLayer | None:
    qkv, output = _native(layer.qkv), _native(layer.output)
    gate_up, down = _native(layer.gate_up), _native(layer.down)
    if qkv is None or output is None or gate_up is None or down is None:
        return None
    return DecoderLayer(
        qkv,
        output,
        gate_up,
        down,
        attention_norm=_native_norm(layer.attention_norm),
        mlp_norm=_native_norm(layer.mlp_norm),
        query_norm=None if layer.query_norm is None else _native_norm(layer.query_norm),
        key_norm=None if layer.key_norm is None else _native_norm(layer.key_norm),
        number=layer.call.layer,
        scale=layer.call.scale,
        sliding_window=layer.call.sliding_window,
        soft_cap=layer.call.soft_cap,
    )


def _native(product: object) -> Linear | None:
    if isinstance(product, AdaptedLinear):
        base = _native(product.base)
        return base and replace(base, updates=tuple(map(_update, product.updates)))
    return product.native if isinstance(product, PanelLinear) else None


def _update(update: Update) -> NativeUpdate:
    weights = update.weights
    return NativeUpdate(update.first, weights.down, weights.up, weights.starts)


def _native_norm(norm: RmsNorm) -> Norm:
    return Norm(norm.weight.float().contiguous(), norm.eps_number)


def _head(head: Foreign) -> Callable[[Tensor], Tensor]:
    """Return the packed output layer; that of an embedding model does nothing."""
    return head if isinstance(head, nn.Identity) else product_of([head])


def _turns(rotary: Foreign, num_positions: int) -> Tensor:
    """Return complex64 [positions, 1, head_dim / 2], computed by the model's own rotary module."""
    positions = torch.arange(num_positions).unsqueeze(0)
    cosines, sines = rotary(torch.empty(0), positions)
    half = cosines.shape[-1] // 2
    return torch.complex(cosines[0, :, :half], sines[0, :, :half]).unsqueeze(1)


def _layer(layer: Foreign, call: LayerCall, heads: tuple[int, int]) -> FusedLayer:
    attention, mlp = layer.self_attn, layer.mlp
    num_heads, num_kv_heads = heads
    norms = [getattr(attention, name, None) for name in ("q_norm", "k_norm")]
    query_norm, key_norm = (norm and _norm(norm, in_pairs=True) for norm in norms)
    parts = [
        _in_pairs(attention.q_proj, num_heads),
        _in_pairs(attention.k_proj, num_kv_heads),
        attention.v_proj,
    ]
    fused = FusedLayer(
        call=call,
        heads=num_heads,
        kv_heads=num_kv_heads,
        attention_norm=_norm(layer.input_layernorm),
        qkv=product_of(parts),
        query_norm=query_norm,
        key_norm=key_norm,
        output=product_of([attention.o_proj]),
        mlp_norm=_norm(layer.post_attention_layernorm),
        gate_up=product_of([mlp.gate_proj, mlp.up_proj]),
        down=product_of([mlp.down_proj]),
    )
    for linear in (*attention.children(), *mlp.children()):
        # a layer's plain weights go before the next one is packed
        if isinstance(linear, QuantisedLinear):
            linear.release()
        elif isinstance(linear, nn.Linear):
            del linear.weight
    return fused


def product_of(linears: Sequence[Foreign]) -> Product:
    """Return one product of what reads the same input."""
    if isinstance(linears[0], QuantisedLinear):
        return fast_linear(joined_linear(linears))
    return packed_linear(linears[0] if len(linears) == 1 else joined(linears))


def _norm(norm: Foreign, *, in_pairs: bool = False) -> RmsNorm:
    weight = norm.weight.detach()
    if in_pairs:
        weight = weight[_pairs(len(weight))]
    eps = norm.variance_epsilon
    return RmsNorm(weight, torch.tensor([eps]), eps)


def _pairs(head_dim: int) -> Tensor:
    """Return the order of a head's elements that makes those turned together neighbours."""
    return torch.arange(head_dim).view(2, -1).T.flatten()


def pair_order(num_outputs: int, num_heads: int) -> Tensor:
    """Return the order, int64 [num_outputs], of the outputs of Q or K in a `FusedDecoder`."""
    head_dim = num_outputs // num_heads
    return (torch.arange(num_heads).unsqueeze(1) * head_dim + _pairs(head_dim)).flatten()


def _in_pairs(linear: Foreign, num_heads: int) -> nn.Module:
    order = pair_order(linear.out_features, num_heads)
    if isinstance(linear, QuantisedLinear):
        return linear.rows(order)
    bias = None if linear.bias is None else linear.bias[order]
    return _linear(linear.weight[order], bias)


def joined(linears: Sequence[nn.Linear]) -> nn.Linear:
    """Return one linear that computes what `linears` compute, their outputs one after the other."""
    biases = [linear.bias for linear in linears]
    bias = None
    if any(each is not None for each in biases):
        bias = torch.cat(
            [
                linear.weight.new_zeros(linear.out_features) if each is None else each
                for linear, each in zip(linears, biases, strict=True)
            ]
        )
    return _linear(torch.cat([linear.weight for linear in linears]), bias)


def _linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """Return a linear of the given weights, without drawing initial ones."""
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    linear.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        linear.bias = nn.Parameter(bias, requires_grad=False)
    return linear
