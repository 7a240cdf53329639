"""One forward of one model over a flattened batch of tokens."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from muxcluster.core.backends import WINDOW_NAMES
from muxcluster.engine.forward.attention import LayerAttention, LayerCall


class TokenForward(Protocol):
    """Runs a batch of tokens through a model."""

    @property
    def windows(self) -> tuple[int | None, ...]:
        """How many of the last tokens each layer sees, None: all; () where all layers see all."""
        ...

    def logits(
        self,
        tokens: Tensor,
        positions: Tensor,
        attention: LayerAttention,
        wanted: Tensor | None,
        out: Tensor | None = None,
    ) -> Tensor:
        """Return fp32 logits [len(wanted), vocab] of the tokens at `wanted`.

        tokens, positions: int64 [tokens]. wanted: int64, indices into them, None: all; the output
        layer is computed only for these. out: fp32 of the result's shape, filled and returned;
        None: a new tensor.
        """
        ...


def finished(logits: Tensor, out: Tensor | None) -> Tensor:
    """Return `logits` in fp32, in `out` if it is given, with at most one pass over them."""
    return logits.to(torch.float32) if out is None else out.copy_(logits)


@dataclass(slots=True)
class _Windows:
    """Stands in for the attention of a model and notes the windows of its layers."""

    found: list[int | None] = field(default_factory=list)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: LayerCall) -> Tensor:
        self.found.append(call.sliding_window)
        return query.new_zeros((*query.shape[:2], value.shape[-1]))

    def attend_latent(self, query: Tensor, latent: Tensor, call: LayerCall) -> Tensor:
        self.found.append(call.sliding_window)
        return query.new_zeros((*query.shape[:2], call.value_width or query.shape[-1]))

    def recur(self, hidden: Tensor, *_: object) -> Tensor:
        """Return zeros for a layer with states (`engine/states/mixers.py`)."""
        return torch.zeros_like(hidden)


class Forward:
    """Runs a model through transformers' attention interface, without the model's own cache."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        whole: Any = model.config
        config = whole.get_text_config(decoder=True)
        self._may_have_windows = any(getattr(config, name, None) for name in WINDOW_NAMES)
        self._windows: tuple[int | None, ...] | None = None
        self._picks_logits = "logits_to_keep" in inspect.signature(model.forward).parameters

    @property
    def model(self) -> nn.Module:
        """Its modules."""
        return self._model

    @property
    def windows(self) -> tuple[int | None, ...]:
        """As `TokenForward.windows`; the first call runs a model that may have some."""
        if self._windows is None:
            self._windows = self._seen_by_layers() if self._may_have_windows else ()
        return self._windows

    @torch.inference_mode()
    def _seen_by_layers(self) -> tuple[int | None, ...]:
        attention = _Windows()
        token = torch.zeros(1, dtype=torch.int64, device=next(self._model.parameters()).device)
        self.logits(token, token, attention, token)
        return tuple(attention.found)

    def logits(
        self,
        tokens: Tensor,
        positions: Tensor,
        attention: LayerAttention,
        wanted: Tensor | None,
        out: Tensor | None = None,
    ) -> Tensor:
        inputs = {"input_ids": tokens.unsqueeze(0)}
        return self.computed(inputs, positions.unsqueeze(0), attention, wanted, out)

    def computed(
        self,
        inputs: Mapping[str, Tensor],
        positions: Tensor,
        attention: LayerAttention,
        wanted: Tensor | None,
        out: Tensor | None = None,
    ) -> Tensor:
        """As `logits`, of what the model itself takes.

        inputs: input_ids int64 [1, tokens], or inputs_embeds [1, tokens, hidden_size]. positions:
        int64 [1, tokens], or [axes, 1, tokens].
        """
        picks = self._picks_logits and wanted is not None
        options = {"logits_to_keep": wanted} if picks else {}
        output = self._model(
            **inputs,
            position_ids=positions,
            use_cache=False,
            attention_batch=attention,
            **options,
        )
        logits: Tensor = output.logits[0]
        if not picks and wanted is not None:
            logits = logits[wanted]
        return finished(logits, out)
