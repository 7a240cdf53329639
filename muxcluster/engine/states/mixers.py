"""Layers that keep a state of fixed size: transformers' own code, on states that our batch keeps.

Such a layer (gated delta rule, Mamba-2) mixes the tokens of a sequence through two tensors: the
last inputs of a short convolution, and a recurrent state. transformers' code takes them from a
cache, one batch of equally long rows at a time. In place of a cache it gets the states of some rows
of a flattened batch.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

Foreign = Any  # a module of transformers, with attributes that mypy does not know

# Classes of transformers whose forward goes on from given states for one token and for many.
_CHUNKED = frozenset(
    {"BambaMixer", "FalconH1Mixer", "GraniteMoeHybridMambaLayer", "Qwen3NextGatedDeltaNet"}
)
# For one token alone: many would begin anew.
_STEPWISE = frozenset({"JambaMambaMixer"})
_MIXERS = _CHUNKED | _STEPWISE
# Layers around them that hand on a cache and nothing else.
_CLOSED_LAYERS = frozenset({"JambaMambaDecoderLayer"})


@dataclass(slots=True, eq=False)
class MixerStates:
    """States of one layer, of rows of equally many tokens: what its forward gets as its cache.

    conv: [rows, channels, kernel size]; recurrent: [rows, ...]. None before the first token of the
    rows. The layer's forward replaces them, or changes them in place.
    """

    conv: Tensor | None = None
    recurrent: Tensor | None = None

    # The methods are those of transformers' caches that the forward calls.

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        return self.conv

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        return self.recurrent

    def is_recording_past(self, layer_idx: int) -> bool:
        """Return False: nothing is ever taken back."""
        return False

    def update_conv_state(
        self, conv_states: Tensor, layer_idx: int, state_idx: int = 0, *, conv_kernel_size: int
    ) -> Tensor:
        """Keep the last inputs of the convolution; return all that the new tokens see.

        conv_states: [rows, channels, tokens].
        """
        known = self.conv
        inputs = conv_states if known is None else torch.cat((known, conv_states), dim=-1)
        inputs = pad(inputs, (max(0, conv_kernel_size - inputs.shape[-1]), 0))
        self.conv = inputs[..., -conv_kernel_size:]
        return inputs

    def update_recurrent_state(
        self, recurrent_states: Tensor, layer_idx: int, state_idx: int = 0
    ) -> Tensor:
        """Keep the recurrent state behind the new tokens, and return it."""
        self.recurrent = recurrent_states
        return recurrent_states


# A layer's forward: hidden states [rows, tokens, size] and what the rows keep, which it changes;
# None: the rows begin, and nothing is kept. Returns [rows, tokens, size].
Mix = Callable[[Tensor, MixerStates | None], Tensor]


class StatesOfRows(Protocol):
    """States of the rows of one forward, passed as `attention_batch`."""

    def recur(self, hidden: Tensor, layer: int, mix: Mix) -> Tensor:
        """Return what `mix` makes of each row's tokens, [1, tokens, size].

        hidden: [1, tokens, size], of all rows. layer: its place among those with states.
        """
        ...


def mixers_of(model: nn.Module) -> list[nn.Module]:
    """Return the layers with states that can be served, in order."""
    return [each for each in model.modules() if type(each).__name__ in _MIXERS]


def keep_states(model: nn.Module) -> None:
    """Let the layers with states of `model` take these from the batch of a forward; idempotent.

    Layers of attention are numbered among themselves: others have no blocks of keys and values.
    """
    mixer: Foreign
    for place, mixer in enumerate(mixers_of(model)):
        mixer.forward = partial(_recur, mixer, place)
    layer: Foreign
    for layer in model.modules():
        if type(layer).__name__ in _CLOSED_LAYERS:
            layer.forward = partial(_hand_on, layer)
    attention: Foreign
    attentions = [each for each in model.modules() if hasattr(each, "is_causal")]
    for place, attention in enumerate(attentions):
        attention.kv_layer = place


def mixed(mixer: nn.Module, hidden: Tensor, states: MixerStates | None) -> Tensor:
    """Run transformers' forward of a layer with states: see `Mix`."""
    goes_on = states is not None and states.recurrent is not None
    parts = [hidden]
    if goes_on and type(mixer).__name__ in _STEPWISE:
        parts = list(torch.split(hidden, 1, dim=1))
    outputs: list[Tensor] = [type(mixer).forward(mixer, part, cache=states) for part in parts]
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)


def _recur(
    mixer: nn.Module,
    place: int,
    hidden_states: Tensor,
    cache: StatesOfRows | None = None,
    **options: Any,
) -> Tensor:
    """Stand in for the forward of a layer with states: hidden states [1, tokens, size].

    cache: our batch, from a layer that hands on nothing else. Raises KeyError where the model did
    not pass it on.
    """
    batch: StatesOfRows = options["attention_batch"] if cache is None else cache
    return batch.recur(hidden_states, place, partial(mixed, mixer))


def _hand_on(layer: nn.Module, hidden_states: Tensor, **options: Any) -> Tensor:
    """Stand in for the forward of a layer that hands on a cache and nothing else."""
    output: Tensor = type(layer).forward(layer, hidden_states, cache=options["attention_batch"])
    return output
