"""256 requests of 100 to 1,024 tokens: through a unit, and through transformers' own batching."""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import torch
from transformers import (
    ContinuousBatchingConfig,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
)
from transformers.utils import logging

from bench.gpu.engine_parts.serving import (
    Asked,
    device_name,
    dtype_of,
    random_requests,
    serving,
    unit_of,
)
from bench.gpu.running.models import bytes_of_block, hf_config, shape_of, spec_of, write_model
from bench.gpu.running.run import Run

SIZES = ("1b", "8b")
REQUESTS, LENGTHS = 256, (100, 1024)
_SLACK_TOKENS = 40  # Of a sequence: the end of its last block, and a share of a whole number
# What versions call the tokens of a cache page: from 5.18 on, before.
_PAGE_FIELDS = ("page_size", "block_size")


def requests_of(run: Run, vocab_size: int) -> list[Asked]:
    """The same for both sides."""
    count, lengths = (6, (4, 24)) if run.tiny else (REQUESTS, LENGTHS)
    return random_requests(np.random.default_rng(0), count, lengths, vocab_size)


def ours(run: Run, size: str) -> None:
    """All requests at once through a unit; the pool holds all of them, and little more."""
    shape, dtype = shape_of(size, tiny=run.tiny), dtype_of(run)
    asked = requests_of(run, shape.vocab_size)
    tokens = sum(len(each.prompt) + each.output_tokens for each in asked)
    room = (len(asked), tokens // len(asked) + _SLACK_TOKENS)
    with tempfile.TemporaryDirectory(prefix="bench-gpu-") as folder:
        model = spec_of(size, write_model(Path(folder), shape), shape, dtype)
        with serving(unit_of(run, model, room, bytes_of_block(dtype))) as unit:
            unit.run([Asked(each.prompt, 4) for each in asked], run.ends_at)
            start_s, listener = unit.run(asked, run.ends_at)
    ends = [heard.times_s[-1] for heard in listener.heard.values()]
    _keep(run, f"serve {size}, muxcluster", asked, max(ends) - start_s)


def theirs(run: Run, size: str) -> None:
    """The same through ContinuousBatchingManager, with everything it chooses by itself."""
    logging.set_verbosity_error()
    shape, dtype = shape_of(size, tiny=run.tiny), dtype_of(run)
    asked = requests_of(run, shape.vocab_size)
    with torch.device(device_name(run)):
        config = LlamaConfig(**hf_config(shape), dtype=dtype)
        model = LlamaForCausalLM._from_config(config, dtype=getattr(torch, dtype))
    model.eval()
    longest = max(each.output_tokens for each in asked)
    manager_of = partial(
        model.continuous_batching_context_manager,
        generation_config=GenerationConfig(
            max_new_tokens=longest, do_sample=False, eos_token_id=-1, pad_token_id=0
        ),
        continuous_batching_config=ContinuousBatchingConfig(**_sizes(run.tiny)),
        block=True,
        timeout=5,
        warmup=not run.tiny,
    )
    with torch.inference_mode(), manager_of() as manager:
        _all_of(manager, "warm", [Asked(each.prompt, 4) for each in asked], run.ends_at)
        start_s = monotonic()
        _all_of(manager, "timed", asked, run.ends_at)
        seconds = monotonic() - start_s
        attention = str(model.config._attn_implementation)
    _keep(run, f"serve {size}, transformers", asked, seconds, attention=attention)


def _sizes(tiny: bool) -> dict[str, Any]:
    """On a GPU everything is the library's own choice; a CPU has no memory to go by."""
    if not tiny:
        return {"allow_block_sharing": False}
    known = {field.name for field in fields(ContinuousBatchingConfig)}
    page = next(name for name in _PAGE_FIELDS if name in known)
    return {
        page: 64,
        "num_blocks": 64,
        "max_batch_tokens": 256,
        "max_requests_per_batch": 8,
        "allow_block_sharing": False,
        "use_cuda_graph": False,
    }


def _all_of(manager: Any, name: str, asked: Sequence[Asked], until_s: float) -> None:
    """Raises TimeoutError, or RuntimeError where an answer is not whole."""
    wanted: Mapping[str, int] = {
        f"{name}-{index}": each.output_tokens for index, each in enumerate(asked)
    }
    for (request_id, count), each in zip(wanted.items(), asked, strict=True):
        manager.add_request(each.prompt.tolist(), request_id=request_id, max_new_tokens=count)
    got: dict[str, int] = {}
    while len(got) < len(asked):
        if monotonic() > until_s:
            raise TimeoutError(f"{len(got)} of {len(asked)} requests had ended when time was up")
        result = manager.get_result(timeout=1)
        if result is None:
            if not manager.is_running():
                raise RuntimeError("transformers' generation thread ended")
        elif result.is_finished():
            if result.error is not None:
                raise RuntimeError(f"{result.request_id}: {result.error}")
            got[result.request_id] = len(result.generated_tokens)
    if got != wanted:
        wrong = {key: count for key, count in got.items() if count != wanted[key]}
        raise RuntimeError(f"answers of other lengths than asked for: {wrong}")


def _keep(run: Run, case: str, asked: Sequence[Asked], seconds: float, **others: Any) -> None:
    num_in = sum(len(each.prompt) for each in asked)
    num_out = sum(each.output_tokens for each in asked)
    row = {
        "case": case,
        "requests": len(asked),
        "prompt_tokens": num_in,
        "output_tokens": num_out,
        "seconds": seconds,
        "tokens_per_s": num_out / seconds,
        **others,
    }
    run.keep(row, {f"{case} seconds": [seconds]})
    print(f"{case:<34} {num_out / seconds:>9.0f} output tokens/s, {seconds:.1f} s", flush=True)


PARTS: dict[str, Callable[[Run], None]] = {
    f"serve.{size}.{side}": partial(part, size=size)
    for size in SIZES
    for side, part in (("muxcluster", ours), ("transformers", theirs))
}
