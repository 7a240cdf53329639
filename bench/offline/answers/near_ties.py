"""Greedy answers that a model permits when its two best logits are nearly equal."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from bench.offline.answers.jobs import Answered
from muxcluster.http.calls.choice import CONTEXT_TOKENS
from muxcluster.text.detokenizer import Detokenizer
from muxcluster.text.tokenizer import Tokenizer

# Sums in another order may swap logits as close as this. The errors of Hugging Face's own fp32
# logits of these models are half as large, and its own attention kernels then choose differently.
NEAR_TIE = 1e-4


def differing(runs: Sequence[Answered]) -> list[str]:
    """Requests that not all runs answer alike, by custom_id."""
    first = runs[0].texts
    return [key for key, text in first.items() if any(each.texts[key] != text for each in runs)]


def near_ties(model: Path, job: Path, runs: Sequence[Answered]) -> list[str]:
    """Of the requests that `differing` finds, those whose every answer is one of Hugging Face's
    model in float64, with near-ties broken either way. job: the file that was answered."""
    asked = differing(runs)
    if not asked:
        return []
    oracle = Oracle(model)
    lines = {line["custom_id"]: line["body"] for line in map(json.loads, job.open("rb"))}
    found = []
    for key in asked:
        body = lines[key]
        permitted = oracle.answers(body["prompt"], body["max_tokens"])
        if {run.texts[key] for run in runs} <= permitted:
            found.append(key)
    return found


class Oracle:
    """Hugging Face's model of a directory in float64, without a cache."""

    def __init__(self, directory: Path) -> None:
        transformers_logging.disable_progress_bar()
        self._model = AutoModelForCausalLM.from_pretrained(
            directory, dtype=torch.float64, attn_implementation="eager"
        ).eval()
        self._tokenizer = Tokenizer.load(directory)

    def answers(self, prompt: str | list[int], count: int) -> set[str]:
        """The texts of all greedy answers of `count` tokens; one where nothing is nearly tied."""
        ids = self._tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
        return {self._text(ids, tokens) for tokens in self._paths(ids, count)}

    def _paths(self, prompt: list[int], count: int) -> Iterator[list[int]]:
        begun: list[list[int]] = [[]]
        while begun:
            tokens = begun.pop()
            if len(tokens) == count:
                yield tokens
            else:
                begun += [[*tokens, each] for each in self._best(prompt + tokens)]

    @torch.inference_mode()
    def _best(self, ids: list[int]) -> list[int]:
        logits = self._model(torch.tensor([ids]), use_cache=False, logits_to_keep=1).logits[0, -1]
        best: list[int] = (logits > logits.max() - NEAR_TIE).nonzero().flatten().tolist()
        return best

    def _text(self, prompt: list[int], tokens: list[int]) -> str:
        decoder = Detokenizer(self._tokenizer, context=prompt[-CONTEXT_TOKENS:])
        return decoder.push(tokens) + decoder.finish()
