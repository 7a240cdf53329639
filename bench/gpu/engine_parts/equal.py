"""Greedy output of a small random model beside that of Hugging Face's `generate`, in fp32."""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from bench.gpu.engine_parts.serving import Asked, random_requests, serving, unit_of
from bench.gpu.running.models import bytes_of_block, hf_config, spec_of
from bench.gpu.running.run import Run
from muxcluster.placement.shapes.shape import ModelShape

# Heads as wide as a real model's, so that the kernels are the ones that it would run.
SHAPE = ModelShape(4, 256, 8, 2, 64, 512, 512, 1024)
# The default of 0.02 makes a small model repeat a few tokens, which hides wrong keys.
WEIGHT_STD = 0.2
REQUESTS, LENGTHS = 16, (1, 300)
OUTPUT_TOKENS = 48
# Where the two best logits are as close as this, sums in another order may swap them.
NEAR_TIE = 1e-4


def equal(run: Run, *, is_stock: bool = False) -> None:
    """One check a request: tokens that differ, near-ties apart.

    is_stock: with the model's own modules instead of our fused kernels.
    """
    count, output = (4, 8) if run.tiny else (REQUESTS, OUTPUT_TOKENS)
    drawn = random_requests(np.random.default_rng(1), count, LENGTHS, SHAPE.vocab_size)
    asked = [Asked(each.prompt, output) for each in drawn]
    with tempfile.TemporaryDirectory(prefix="bench-gpu-") as folder:
        model = _random_model()
        model.save_pretrained(folder)
        spec = spec_of("small", Path(folder), SHAPE, "float32", load_format="auto")
        unit = unit_of(run, spec, (count, LENGTHS[1] + output), bytes_of_block("float32"))
        with serving(replace(unit, fuses_layers=not is_stock)) as ours:
            _, listener = ours.run(asked, run.ends_at)
    model.to(run.device).eval()
    num_ties = 0
    kind = "stock" if is_stock else "fused"
    for index, each in enumerate(asked):
        got = listener.heard[str(index)].tokens
        wrong, ties = compared(lambda prompt, n: _greedy(model, prompt, n), each.prompt, got)
        num_ties += ties
        case = f"request {index}, {len(each.prompt)} tokens in, {output} out"
        run.check(
            "greedy stock" if is_stock else "greedy", case, lambda found=wrong: float(found), 0.0
        )
    run.keep({"case": f"greedy in fp32, {kind}", "requests": count, "near_ties": num_ties}, {})


Greedy = Callable[[list[int], int], tuple[list[int], list[float]]]


def compared(greedy: Greedy, prompt: Sequence[int], got: Sequence[int]) -> tuple[int, int]:
    """(tokens of `got` that the oracle would not have chosen, near-ties among its choices).

    greedy: (tokens, gap between the two best logits of each) after a prompt. After a token that
    differs the oracle goes on from ours.
    """
    wrong = ties = done = 0
    while done < len(got):
        expected, gaps = greedy([*prompt, *got[:done]], len(got) - done)
        rest = got[done:]
        differs = [i for i, (a, b) in enumerate(zip(rest, expected, strict=True)) if a != b]
        if not differs:
            break
        is_tie = gaps[differs[0]] < NEAR_TIE
        ties += is_tie
        wrong += not is_tie
        done += differs[0] + 1
    return wrong, ties


def _random_model() -> Any:
    model = LlamaForCausalLM(LlamaConfig(**hf_config(SHAPE, initializer_range=WEIGHT_STD)))
    return model.to(torch.float32)


@torch.inference_mode()
def _greedy(model: Any, prompt: list[int], count: int) -> tuple[list[int], list[float]]:
    ids = torch.tensor([[int(token) for token in prompt]], device=model.device)
    found = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        generation_config=GenerationConfig(
            max_new_tokens=count,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
            output_logits=True,
            return_dict_in_generate=True,
        ),
    )
    best = torch.stack(found.logits)[:, 0].float().topk(2).values
    return found.sequences[0, len(prompt) :].tolist(), (best[:, 0] - best[:, 1]).tolist()


PARTS: dict[str, Callable[[Run], None]] = {
    "equal": equal,
    "equal.stock": partial(equal, is_stock=True),
}
