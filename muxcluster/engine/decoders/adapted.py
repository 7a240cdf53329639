"""Gives a forward its adapters: the linears, or merged products, of each kind of decoder."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from muxcluster.core.errors import LoadError
from muxcluster.core.unitspec import ModelSpec
from muxcluster.engine.adapters.forward import AdaptedForward
from muxcluster.engine.adapters.linear import AdaptedLinear, OtherTokens, Update
from muxcluster.engine.adapters.tokens import AdapterTokens, CurrentTokens
from muxcluster.engine.adapters.weights import ModelAdapters
from muxcluster.engine.decoders.kernel_decoder import KernelDecoder
from muxcluster.engine.decoders.torch_decoder import FusedDecoder, FusedLayer
from muxcluster.engine.decoders.torch_fusing import native_step, pair_order
from muxcluster.engine.forward.paged_forward import Forward, TokenForward
from muxcluster.engine.load.division.layers import SummedLinear
from muxcluster.engine.load.parity import WholeAttention, some_tokens
from muxcluster.kernels.native.step import DecoderStep, StepRows

_QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
_GATE_UP = ("mlp.gate_proj", "mlp.up_proj")


def linear_sizes(model: nn.Module) -> Mapping[str, int]:
    """Return the outputs of the model's linears by name, on this rank.

    Fusing the model takes some of them apart.
    """
    sizes: dict[str, int] = {}
    for name, each in model.named_modules():
        size = getattr(each, "out_features", None)
        if isinstance(size, int):
            sizes[name.removesuffix(".part")] = size  # of a `SummedLinear`, too
    return sizes


def with_adapters(
    forward: TokenForward, adapters: ModelAdapters, sizes: Mapping[str, int]
) -> AdaptedForward:
    """Return the forward with its model's adapters. sizes: `linear_sizes` of the model as loaded.

    Fused decoders get layers of their own for tokens with adapters, on the same weights, so that
    jobs without any lose nothing; transformers' modules get linears that do both.
    """
    linears = _Linears(adapters, sizes)
    adapted: TokenForward
    if isinstance(forward, FusedDecoder):
        fused = tuple(_fused(layer, linears) for layer in forward.layers)
        adapted = replace(forward, layers=fused, step=None)
        step = native_step(adapted)
        if step is not None:
            adapted = replace(adapted, step=_AdaptedStep(step, linears.current))
    elif isinstance(forward, KernelDecoder):
        layers = tuple(
            replace(layer, **linears.of_layer(layer, layer.call.layer)) for layer in forward.layers
        )
        adapted = replace(forward, layers=layers)
    else:
        assert isinstance(forward, Forward), f"{type(forward).__name__} cannot have adapters"
        linears.put(forward.model)
        adapted = forward
    return AdaptedForward(forward, adapted, linears.current, adapters.names, adapters.places)


@dataclass(frozen=True, slots=True, eq=False)
class _AdaptedStep:
    """A step in one call, of rows of which some have adapters."""

    step: DecoderStep
    current: CurrentTokens

    def logits(
        self, tokens: Tensor, rows: StepRows, wanted: Tensor, out: Tensor | None = None
    ) -> Tensor:
        now = self.current.tokens
        adapters = None if now is None else now.adapters()
        return self.step.logits(tokens, rows, wanted, out, adapters)


@dataclass(frozen=True, slots=True, eq=False)
class _Linears:
    """The linears of a model that its adapters change."""

    adapters: ModelAdapters
    sizes: Mapping[str, int]
    current: CurrentTokens = field(default_factory=CurrentTokens)

    def put(self, model: nn.Module) -> None:
        """Replace the linears in the model."""
        for name in self.adapters.modules:
            model.set_submodule(name, self.adapted(model.get_submodule(name), [name]))

    def of_layer(self, layer: Any, number: int, orders: Sequence[Tensor] = ()) -> dict[str, Any]:
        """Return the products of a decoder's layer of Llama's kind, by its fields.

        orders: of the outputs of Q and K in their product, if another than the model's.
        """
        start = f"model.layers.{number}"
        qkv, gate_up = ([f"{start}.{name}" for name in names] for names in (_QKV, _GATE_UP))
        return {
            "qkv": self.adapted(layer.qkv, qkv, orders),
            "output": self.adapted(layer.output, [f"{start}.self_attn.o_proj"]),
            "gate_up": self.adapted(layer.gate_up, gate_up),
            "down": self.adapted(layer.down, [f"{start}.mlp.down_proj"]),
        }

    def adapted(self, product: Any, names: Sequence[str], orders: Sequence[Tensor] = ()) -> Any:
        """Return a product with its adapters; itself without any.

        names: of its linears, whose outputs are one after the other; orders: of the first of them.
        """
        if isinstance(product, SummedLinear):
            # ranks add what adapters make of their parts of the inputs, too
            part = self.adapted(product.part, names)
            return product if part is product.part else product.with_part(part)
        updates: list[Update] = []
        first = 0
        for place, name in enumerate(names):
            weights = self.adapters.modules.get(name)
            if weights is not None:
                mine = weights.ordered(orders[place]) if place < len(orders) else weights
                updates.append(Update(first, mine))
                if self.adapters.places is not None:
                    self.adapters.places.hold(name, mine)
            first += self.sizes[name]
        return AdaptedLinear(product, first, updates, self.current) if updates else product


@torch.inference_mode()
def check_calls(forward: AdaptedForward, spec: ModelSpec) -> None:
    """Run random tokens with an adapter through a model on transformers' own modules.

    Raises LoadError, naming an adapter's directory or the model's, where the model reads the weight
    of an adapted linear itself or calls it for some tokens only: such a linear cannot be adapted.
    """
    if not isinstance(forward.plain, Forward):
        return
    model = forward.plain.model
    directory = Path(spec.adapters[0].path if spec.adapters else spec.path)
    modules = model.named_modules()
    linears = {name: each for name, each in modules if isinstance(each, AdaptedLinear)}
    called: set[str] = set()

    def note(name: str, *_: object) -> None:
        called.add(name)

    hooks = [each.register_forward_hook(partial(note, name)) for name, each in linears.items()]
    tokens, positions = some_tokens(model, spec)
    batch = AdapterTokens.of(np.zeros(len(tokens), dtype=np.int32), tokens.device)
    try:
        forward.of(batch).logits(tokens, positions, WholeAttention(), None)
    except OtherTokens as error:
        raise LoadError(directory, f"{spec.name} computes experts by tokens: {error}") from error
    except Exception as error:  # the model's code asks its linears for what adapted ones have not
        message = f"{spec.name} does not run with adapted linears: {error}"
        raise LoadError(directory, message) from error
    finally:
        for hook in hooks:
            hook.remove()
    unused = sorted(linears.keys() - called)
    if unused:
        message = f"{spec.name} does not call {unused[0]}, so it cannot be adapted"
        raise LoadError(directory, message)


def _fused(layer: FusedLayer, linears: _Linears) -> FusedLayer:
    number = layer.call.layer
    query, key = (linears.sizes[f"model.layers.{number}.{name}"] for name in _QKV[:2])
    orders = (pair_order(query, layer.heads), pair_order(key, layer.kv_heads))
    return replace(layer, **linears.of_layer(layer, number, orders))
