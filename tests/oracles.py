"""Independent oracles: Hugging Face's own generate, with near-ties counted and nothing else."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    DynamicCache,
    GenerationConfig,
)

NEAR_TIE = 1e-4
"""A mismatch is excused only where the two best logits of the oracle are closer than this."""


class RoundedCache(DynamicCache):
    """Keys and values rounded to 8 bits as they are stored, those of the step itself too."""

    def __init__(self, kv_dtype: str) -> None:
        super().__init__()
        self._kv_dtype = kv_dtype

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **options: Any) -> Any:
        rounded = (self._rounded(states) for states in (key_states, value_states))
        return super().update(*rounded, *args, **options)

    def _rounded(self, states: Tensor) -> Tensor:
        """States [batch, heads, tokens, head_dim] in fp32."""
        if self._kv_dtype == "fp8_e4m3":
            return states.clamp(-448, 448).to(torch.float8_e4m3fn).float()
        largest = states.abs().amax(-1, keepdim=True)
        return torch.floor(states * (127 / largest) + 0.5) * (largest / 127)


class GreedyOracle:
    """Greedy continuations by `transformers` in fp32, one request at a time, no batching.

    kv_dtype: as `ModelSpec.kv_dtype`; its own cache then rounds.
    """

    def __init__(self, directory: Path, kv_dtype: str = "auto") -> None:
        # Before 5.18 transformers runs soft-capped attention (Gemma 2) on SDPA, which cannot cap.
        capped = getattr(AutoConfig.from_pretrained(directory), "attn_logit_softcapping", None)
        attention = {"attn_implementation": "eager"} if capped else {}
        self._model = AutoModelForCausalLM.from_pretrained(
            directory, dtype=torch.float32, **attention
        ).eval()
        self._model.generation_config = GenerationConfig(pad_token_id=0)
        self._kv_dtype = kv_dtype
        self._continuations: dict[tuple[int, ...], tuple[list[int], list[float]]] = {}
        self.num_near_ties = 0

    def continue_(self, prompt: Sequence[int], num_tokens: int) -> tuple[list[int], list[float]]:
        """`num_tokens` greedy tokens after `prompt` (no end token) and the top-2 gap of each.

        Remembered, as many tests ask the same.
        """
        key = (num_tokens, *prompt)
        if key not in self._continuations:
            self._continuations[key] = self._generate(prompt, num_tokens)
        return self._continuations[key]

    def _generate(self, prompt: Sequence[int], num_tokens: int) -> tuple[list[int], list[float]]:
        config = GenerationConfig(
            max_new_tokens=num_tokens,
            do_sample=False,
            pad_token_id=0,
            output_logits=True,
            return_dict_in_generate=True,
        )
        rounds = self._kv_dtype != "auto"
        cache = {"past_key_values": RoundedCache(self._kv_dtype)} if rounds else {}
        ids = torch.tensor([list(prompt)])
        with torch.inference_mode(), warnings.catch_warnings():
            # newer versions call the argument `cache`
            warnings.filterwarnings("ignore", "`past_key_values` is deprecated", FutureWarning)
            out = self._model.generate(
                ids, attention_mask=torch.ones_like(ids), generation_config=config, **cache
            )
        best = torch.stack(out.logits)[:, 0].float().topk(2).values
        gaps = (best[:, 0] - best[:, 1]).tolist()
        return out.sequences[0, len(prompt) :].tolist(), gaps

    def check(self, prompt: Sequence[int], output: Sequence[int]) -> None:
        """AssertionError unless `output` is the greedy continuation of `prompt`.

        Where the oracle itself is undecided (a near-tie) it goes on from the other's token.
        """
        done = 0
        while done < len(output):
            expected, gaps = self.continue_([*prompt, *output[:done]], len(output) - done)
            got = list(output[done:])
            if got == expected:
                return
            wrong = next(i for i, (a, b) in enumerate(zip(got, expected, strict=True)) if a != b)
            assert gaps[wrong] < NEAR_TIE, (
                f"output token {done + wrong} is {got[wrong]}, Hugging Face says "
                f"{expected[wrong]} by a gap of {gaps[wrong]:.2e}"
            )
            self.num_near_ties += 1
            done += wrong + 1


class EmbeddingOracle:
    """Pooled last hidden states by `transformers` in fp32, one text at a time."""

    def __init__(self, directory: Path) -> None:
        self._model = AutoModel.from_pretrained(directory, dtype=torch.float32).eval()

    def embed(
        self, tokens: Sequence[int], size: int | None = None, *, pooling: str = "lasttoken"
    ) -> NDArray[np.float64]:
        """The first `size` numbers of the vector of `tokens`, of length 1."""
        ids = torch.tensor([list(tokens)])
        with torch.inference_mode():
            states = self._model(input_ids=ids, attention_mask=torch.ones_like(ids))
        found = states.last_hidden_state[0].double()
        whole = found.mean(0) if pooling == "mean" else found[0 if pooling == "cls" else -1]
        vector = whole[:size]
        return (vector / vector.norm()).numpy()
