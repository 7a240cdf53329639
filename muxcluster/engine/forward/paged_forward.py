"""One forward of one model over a flattened batch of tokens."""

import inspect
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from muxcluster.core.backends import WINDOW_NAMES
from muxcluster.engine.forward.attention import LayerAttention


class TokenForward(Protocol):
    """Runs a batch of tokens through a model."""

    @property
    def has_windows(self) -> bool:
        """True unless it is known that every layer attends to all earlier tokens."""
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


class Forward:
    """Runs a model through transformers' attention interface, without the model's own cache."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        whole: Any = model.config
        config = whole.get_text_config(decoder=True)
        self.has_windows = any(getattr(config, name, None) for name in WINDOW_NAMES)
        self._picks_logits = "logits_to_keep" in inspect.signature(model.forward).parameters

    @property
    def model(self) -> nn.Module:
        """Its modules."""
        return self._model

    def logits(
        self,
        tokens: Tensor,
        positions: Tensor,
        attention: LayerAttention,
        wanted: Tensor | None,
        out: Tensor | None = None,
    ) -> Tensor:
        picks = self._picks_logits and wanted is not None
        options = {"logits_to_keep": wanted} if picks else {}
        output = self._model(
            input_ids=tokens.unsqueeze(0),
            position_ids=positions.unsqueeze(0),
            use_cache=False,
            attention_batch=attention,
            **options,
        )
        logits: Tensor = output.logits[0]
        if not picks and wanted is not None:
            logits = logits[wanted]
        return finished(logits, out)
