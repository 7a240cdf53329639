"""One forward of a model over a padded batch, with the cache that the model makes itself."""

import inspect
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from muxcluster.core.backends import WINDOW_NAMES
from muxcluster.engine.dense.padding import Padding

# Arguments and outputs that hold the cache: of transformers from 5.24 on, before, of states.
CACHE_NAMES = ("cache", "past_key_values", "cache_params", "state")

Foreign = Any  # a model of transformers; attributes beyond nn.Module's differ by class


@dataclass(frozen=True, slots=True, eq=False)
class Output:
    """Logits and cache of one forward."""

    # fp32 [rows, vocab] of the last column, or [rows, width, vocab] where all were asked
    logits: Tensor
    cache: Any  # of all columns so far


class DenseForward:
    """Runs a model as `generate` does: the model makes its inputs of ids, mask and cache."""

    def __init__(self, model: Foreign) -> None:
        """Raises ValueError where the model's forward takes no cache by a known name."""
        self.model = model
        self._takes = frozenset(inspect.signature(model.forward).parameters)
        names = [name for name in CACHE_NAMES if name in self._takes]
        if not names:
            raise ValueError(f"its forward takes none of {', '.join(CACHE_NAMES)}")
        self._cache_name = names[0]
        # What makes the inputs may name it otherwise than the forward: code of both kinds is mixed.
        prepares = inspect.signature(model.prepare_inputs_for_generation).parameters
        named = (self._cache_name, *CACHE_NAMES)
        self._prepared_name = next((name for name in named if name in prepares), names[0])
        self.device: torch.device = next(model.parameters()).device
        self.dtype: torch.dtype = next(model.parameters()).dtype
        self.vocab_size: int = model.get_input_embeddings().num_embeddings
        config = model.config.get_text_config(decoder=True)
        # True where layers may count columns back, those of padding inside a row too.
        self.has_windows = any(getattr(config, name, None) for name in WINDOW_NAMES)

    def run(
        self,
        tokens: NDArray[np.int64],
        padding: Padding,
        cache: Any | None,
        *,
        all_logits: bool = False,
    ) -> Output:
        """Run `tokens` behind those of `cache`, which is used up.

        tokens: int64 [rows, width], any value where there is padding. padding: of cached columns
        and these. cache: of the columns before, None if there are none. Raises ValueError where the
        model returns no cache, else whatever the model raises.
        """
        width = tokens.shape[1]
        inputs = self.model.prepare_inputs_for_generation(
            self._tensor(tokens),
            attention_mask=self._tensor(padding.mask.astype(np.int64)),
            position_ids=self._tensor(padding.positions[:, -width:]),
            use_cache=True,
            is_first_iteration=cache is None,
            **{self._prepared_name: self._new_cache() if cache is None else cache},
        )
        for name in CACHE_NAMES:
            if name not in self._takes and name in inputs:
                inputs[self._cache_name] = inputs[name]
        inputs = {name: value for name, value in inputs.items() if name in self._takes}
        if "logits_to_keep" in self._takes:
            inputs["logits_to_keep"] = 0 if all_logits else 1
        output = self.model(**inputs, return_dict=True)
        logits = output.logits if all_logits else output.logits[:, -1]
        made = next((output[name] for name in CACHE_NAMES if output.get(name) is not None), None)
        if made is None:
            raise ValueError(f"its forward returns no {self._cache_name}")
        return Output(logits.to(torch.float32), made)

    def _new_cache(self) -> Any | None:
        """Return a transformers cache that keeps all columns; None lets the model make one."""
        # A layer with a window would keep its last columns only. These are not the last tokens
        # where a row has holes or is inserted later; the mask hides what the window does not see.
        if self.model.is_remote_code() or self._cache_name == "state":
            return None
        cache = DynamicCache(config=self.model.config.get_text_config(decoder=True))
        cache.layers = [
            DynamicLayer() if type(layer) is DynamicSlidingWindowLayer else layer
            for layer in cache.layers
        ]
        return cache

    def _tensor(self, array: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device)
