"""Finds out whether a paged cache can serve a loaded model, by running one token through it."""

from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from muxcluster.core.unitspec import ModelSpec
from muxcluster.engine.forward.attention import LayerCall
from muxcluster.engine.load.hf_config import NotPaged
from muxcluster.engine.states.mixers import Mix

# Arguments of a layer that our kernels do not honour: masks and biases.
_CHANGES_SCORES = frozenset({"attention_mask", "position_bias", "head_mask"})

NUM_TOKENS = 2


@dataclass(slots=True)
class _Recorder:
    """Stands in for the attention of every layer and records its calls."""

    # in order, with key and value shapes, or twice that of latents
    calls: list[tuple[LayerCall, torch.Size, torch.Size]] = field(default_factory=list)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: LayerCall) -> Tensor:
        self.calls.append((call, key.shape, value.shape))
        return query.new_zeros((*query.shape[:2], value.shape[-1]))

    def attend_latent(self, query: Tensor, latent: Tensor, call: LayerCall) -> Tensor:
        assert call.value_width is not None
        self.calls.append((call, latent.shape, latent.shape))
        return query.new_zeros((*query.shape[:2], call.value_width))

    def recur(self, hidden: Tensor, layer: int, mix: Mix) -> Tensor:
        return torch.zeros_like(hidden)


@torch.inference_mode()
def probe(model: nn.Module, spec: ModelSpec, config_file: Path) -> tuple[LayerCall, ...]:
    """Return the calls of all layers; raise NotPaged unless our attention can serve each.

    Every layer must pass ordinary keys and values of the specified shape to it, exactly once, or
    latents that fill that shape. The error names `config_file`.
    """
    recorder = _Recorder()
    device = next(model.parameters()).device
    tokens = torch.zeros((1, NUM_TOKENS), dtype=torch.int64, device=device)
    try:
        model(
            input_ids=tokens,
            position_ids=torch.arange(NUM_TOKENS, device=device).unsqueeze(0),
            use_cache=False,
            attention_batch=recorder,
        )
    except Exception as error:  # foreign code: whatever it raises means the same
        reason = f"its forward fails: {type(error).__name__}: {error}"
        raise NotPaged(config_file, _refusal(reason)) from error
    reason = _fault(recorder, spec)
    if reason:
        raise NotPaged(config_file, _refusal(reason))
    return tuple(call for call, _, _ in recorder.calls)


def _fault(recorder: _Recorder, spec: ModelSpec) -> str:
    """Return why the recorded calls cannot be served; "" if they can."""
    shape = spec.shape
    layers = [call.layer for call, _, _ in recorder.calls]
    if layers != list(range(shape.num_layers)):
        return f"its {shape.num_layers} layers asked for attention as layers {layers}"
    heads = (NUM_TOKENS, shape.num_kv_heads, shape.head_dim)
    for call, key, value in recorder.calls:
        is_latent = call.value_width is not None
        expected = (NUM_TOKENS, 2 * shape.num_kv_heads * shape.head_dim) if is_latent else heads
        if key != expected or value != expected:
            return (
                f"layer {call.layer} has keys {tuple(key)} and values {tuple(value)}, "
                f"not {expected}"
            )
        if is_latent and (call.sliding_window or call.soft_cap or call.sinks is not None):
            return f"layer {call.layer} limits its attention to latents"
        if call.extras & _CHANGES_SCORES:
            changes = ", ".join(sorted(call.extras & _CHANGES_SCORES))
            return f"layer {call.layer} changes its scores by {changes}"
    return ""


def _refusal(reason: str) -> str:
    return f"this model cannot be served from a paged cache: {reason}"
