"""The other side of bench/serving.py: Hugging Face on the same requests, in a process of its own.

Reads one JSON object from stdin, writes one to stdout. Greedy, fp32, all cores.
"""

import json
import math
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

sys.path.pop(0)  # the script's folder, whose http.py would hide Python's

import torch
from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig
from transformers.utils import logging

PAGE_TOKENS = 64
PAD = 2
Prompts = Sequence[Sequence[int]]


def static(model: Any, prompts: Prompts, num_tokens: int) -> list[list[int]]:
    """`generate` on all prompts as one left-padded batch: the output tokens of each."""
    longest = max(map(len, prompts))
    rows = [[PAD] * (longest - len(prompt)) + list(prompt) for prompt in prompts]
    mask = [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    output = model.generate(
        input_ids=torch.tensor(rows),
        attention_mask=torch.tensor(mask),
        generation_config=_config(num_tokens),
    )
    tokens: list[list[int]] = output[:, longest:].tolist()
    return tokens


def continuous(model: Any, prompts: Prompts, num_tokens: int, concurrency: int) -> list[list[int]]:
    """Transformers' continuous batching, with a cache and batches of just the size it needs."""
    pages = math.ceil((max(map(len, prompts)) + num_tokens) / PAGE_TOKENS) + 1
    sizes = ContinuousBatchingConfig(
        page_size=PAGE_TOKENS,
        num_blocks=pages * concurrency + 8,
        max_batch_tokens=max(512, concurrency),
        max_requests_per_batch=concurrency,
        allow_block_sharing=False,
        use_cuda_graph=False,
    )
    outputs = model.generate_batch(
        inputs=[list(prompt) for prompt in prompts],
        generation_config=_config(num_tokens),
        continuous_batching_config=sizes,
        progress_bar=False,
        warmup=False,
    )
    ordered = sorted(outputs.items(), key=lambda item: int(item[0].rsplit("_", 1)[1]))
    return [list(output.generated_tokens) for _, output in ordered]


def _config(num_tokens: int) -> GenerationConfig:
    # no end token: every answer has its full length, as with ignore_eos
    return GenerationConfig(
        max_new_tokens=num_tokens, do_sample=False, eos_token_id=-1, pad_token_id=PAD
    )


def timed(run: Any, groups: Sequence[Prompts]) -> tuple[float, list[list[int]]]:
    """Output tokens per second over all groups, one after the other, and the tokens."""
    start_s = time.perf_counter()
    tokens = [row for group in groups for row in run(group)]
    seconds = time.perf_counter() - start_s
    return sum(map(len, tokens)) / seconds, tokens


def main() -> None:
    """Each case static and continuous."""
    task = json.load(sys.stdin)
    logging.set_verbosity_error()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    model = AutoModelForCausalLM.from_pretrained(task["path"], dtype=torch.float32).eval()
    static(model, task["cases"][0]["prompts"][:1], 4)
    found = []
    for case in task["cases"]:
        prompts, num_tokens, size = case["prompts"], case["num_tokens"], case["concurrency"]
        batches = [prompts[first : first + size] for first in range(0, len(prompts), size)]
        rate, tokens = timed(lambda group, n=num_tokens: static(model, group, n), batches)
        other_rate, others = timed(
            lambda group, n=num_tokens, c=size: continuous(model, group, n, c), [prompts]
        )
        found.append(
            {
                "concurrency": size,
                "hf_static_tokens_per_s": round(rate, 1),
                "hf_continuous_tokens_per_s": round(other_rate, 1),
                "static_tokens": tokens,
                "continuous_tokens": others,
            }
        )
        print(found[-1]["concurrency"], rate, other_rate, file=sys.stderr, flush=True)
    versions = {"torch": torch.__version__, "threads": torch.get_num_threads()}
    json.dump({"cases": found, **versions}, sys.stdout)


if __name__ == "__main__":
    with torch.inference_mode():
        main()
