"""Independent oracles: Hugging Face's own generate, with near-ties counted and nothing else."""

from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

NEAR_TIE = 1e-4
"""A mismatch is excused only where the two best logits of the oracle are closer than this."""


class GreedyOracle:
    """Greedy continuations by `transformers` in fp32, one request at a time, no batching."""

    def __init__(self, directory: Path) -> None:
        # Before 5.18 transformers runs soft-capped attention (Gemma 2) on SDPA, which cannot cap.
        capped = getattr(AutoConfig.from_pretrained(directory), "attn_logit_softcapping", None)
        attention = {"attn_implementation": "eager"} if capped else {}
        self._model = AutoModelForCausalLM.from_pretrained(
            directory, dtype=torch.float32, **attention
        ).eval()
        self._model.generation_config = GenerationConfig(pad_token_id=0)
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
        ids = torch.tensor([list(prompt)])
        with torch.inference_mode():
            out = self._model.generate(
                ids, attention_mask=torch.ones_like(ids), generation_config=config
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
