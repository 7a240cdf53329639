"""Prefill through a unit: seconds from submitting one prompt to its first token."""

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np

from bench.gpu.engine_parts.serving import (
    Asked,
    Serving,
    dtype_of,
    random_requests,
    serving,
    unit_of,
)
from bench.gpu.running.models import bytes_of_block, shape_of, spec_of, write_model
from bench.gpu.running.run import Run
from muxcluster.placement.cost.roofline import prefill_work
from muxcluster.placement.shapes.shape import ModelShape

# Prompt tokens, and how often: one job each, the token budget is more. The first is warm-up.
PROMPTS = ((8000, 6), (2000, 10), (160, 30))
DRY_PROMPTS = ((64, 3), (16, 3))
_WARM = 1


def prefill(run: Run, size: str) -> None:
    """One row a length of prompt, alone on the GPU."""
    shape, dtype = shape_of(size, tiny=run.tiny), dtype_of(run)
    prompts = DRY_PROMPTS if run.tiny else PROMPTS
    longest = max(tokens for tokens, _ in prompts) + 32
    with tempfile.TemporaryDirectory(prefix="bench-gpu-") as folder:
        path = write_model(Path(folder), shape)
        model = spec_of(size, path, shape, dtype, max_model_len=longest)
        with serving(unit_of(run, model, (2, longest), bytes_of_block(dtype))) as unit:
            for tokens, repeats in prompts:
                _case(run, unit, (size, shape), tokens, repeats)


def _case(
    run: Run, unit: Serving, model: tuple[str, ModelShape], tokens: int, repeats: int
) -> None:
    size, shape = model
    rng = np.random.default_rng(tokens)
    seconds = []
    for _ in range(_WARM + repeats):
        (drawn,) = random_requests(rng, 1, (tokens, tokens), shape.vocab_size)
        start_s, listener = unit.run([Asked(drawn.prompt, 1)], run.ends_at)
        seconds.append(listener.heard["0"].times_s[0] - start_s)
    seconds = seconds[_WARM:]
    work = prefill_work(shape, 4 if run.tiny else 2, 1, 1.0, 1, tokens)
    row = {
        "case": f"prefill {size}, {tokens} tokens",
        "ms": 1e3 * median(seconds),
        "share_of_matmul": work.flops / median(seconds) / run.ceilings.matmul_flops_per_s,
        "flops": work.flops,
    }
    run.keep(row, {f"{row['case']} s": seconds})
    print(
        f"{row['case']:<34} {row['ms']:>9.2f} ms, {row['share_of_matmul']:.0%} of the matrix rate",
        flush=True,
    )


PARTS: dict[str, Callable[[Run], None]] = {"prefill.8b": partial(prefill, size="8b")}
