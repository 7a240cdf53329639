"""Decode through a unit against the memory roofline: weights and KV once over copy bandwidth."""

import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np

from bench.gpu.engine_parts.serving import (
    TOKEN_BUDGET,
    Asked,
    Serving,
    dtype_of,
    random_requests,
    serving,
    unit_of,
)
from bench.gpu.running.listener import Listener
from bench.gpu.running.models import bytes_of_block, shape_of, spec_of, write_model
from bench.gpu.running.run import Run
from muxcluster.placement.shapes.shape import ModelShape

BATCHES = (64, 8, 1)
CONTEXTS = (128, 2048)
STEPS = 240
STOCK = "stock"
_WARM_STEPS = 16
_WINDOWS = 4


def decode(run: Run, size: str, *, is_stock: bool = False) -> None:
    """One row a batch and context of the model `size`.

    is_stock: with the model's own modules instead of our fused kernels, at the shortest context.
    """
    shape = shape_of(size, tiny=run.tiny)
    contexts = (32, 64) if run.tiny else CONTEXTS
    batches = (4, 1) if run.tiny else BATCHES
    steps = 32 if run.tiny else STEPS
    name = size
    if is_stock:
        contexts, batches, name = contexts[:1], (batches[0], batches[-1]), f"{size} {STOCK}"
    room = max(batches), max(contexts) + _outputs(max(batches), max(contexts), steps)
    dtype = dtype_of(run)
    with tempfile.TemporaryDirectory(prefix="bench-gpu-") as folder:
        model = spec_of(size, write_model(Path(folder), shape), shape, dtype)
        spec = unit_of(run, model, room, bytes_of_block(dtype))
        with serving(replace(spec, fuses_layers=not is_stock)) as unit:
            for context in contexts:
                for batch in batches:
                    _case(run, unit, (name, shape), (batch, context, steps))


def _outputs(batch: int, context: int, steps: int) -> int:
    """Tokens to ask for: the first prompts decode while the last ones are computed."""
    return steps + 2 * _WARM_STEPS + -(-batch * context // TOKEN_BUDGET)


def _case(
    run: Run, unit: Serving, model: tuple[str, ModelShape], case: tuple[int, int, int]
) -> None:
    size, shape = model
    batch, context, steps = case
    rng = np.random.default_rng(batch + context)
    prompts = random_requests(rng, batch, (context, context), shape.vocab_size)
    asked = [Asked(each.prompt, _outputs(*case)) for each in prompts]
    _, listener = unit.run(asked, run.ends_at)
    rates, mean_context = rates_of(listener, context)
    num_bytes = step_bytes(shape, 4 if run.tiny else 2, batch, mean_context)
    roofline = batch * run.ceilings.copy_bytes_per_s / num_bytes
    row = {
        "case": f"decode {size}, batch {batch}, {context} tokens",
        "tokens_per_s": median(rates),
        "roofline_tokens_per_s": roofline,
        "share_of_roofline": median(rates) / roofline,
        "ms_per_step": 1e3 * batch / median(rates),
        "bytes_per_step": num_bytes,
    }
    run.keep(row, {f"{row['case']} tokens/s": rates})
    print(line(row), flush=True)


def rates_of(listener: Listener, prompt_tokens: int) -> tuple[list[float], float]:
    """(tokens/s in equal parts of the time in which all sequences decode, mean context then).

    The first steps are left out: a batch that was never seen may be slower then.
    """
    every = [np.array(heard.times_s) for heard in listener.heard.values()]
    begin = max(times[0] for times in every)
    end = min(times[-1] for times in every)
    steps = np.unique(np.concatenate(every))
    steps = steps[(steps > begin) & (steps <= end)][_WARM_STEPS:]
    if len(steps) <= _WINDOWS:
        raise RuntimeError(f"only {len(steps)} steps in which all sequences decoded")
    edges = steps[np.linspace(0, len(steps) - 1, _WINDOWS + 1).astype(int)]
    rates = []
    for left, right in zip(edges, edges[1:], strict=False):
        came = sum(int(((times > left) & (times <= right)).sum()) for times in every)
        rates.append(float(came / (right - left)))
    middle = steps[len(steps) // 2]
    contexts = [prompt_tokens + int((times < middle).sum()) for times in every]
    return rates, float(np.mean(contexts))


def step_bytes(shape: ModelShape, itemsize: int, batch: int, context: float) -> float:
    """The fewest bytes that a decode step reads: weights, and the keys and values of all rows."""
    weights = shape.touched_params(batch) * itemsize
    return weights + batch * context * shape.kv_bytes_per_token(itemsize)


def line(row: dict[str, object]) -> str:
    """A row in words."""
    return (
        f"{row['case']:<34} {row['tokens_per_s']:>9.0f} tokens/s, {row['ms_per_step']:.2f} ms a "
        f"step, {row['share_of_roofline']:.0%} of the memory roofline"
    )


PARTS: dict[str, Callable[[Run], None]] = {
    **{f"decode.{size}": partial(decode, size=size) for size in ("1b", "8b")},
    "stock.8b": partial(decode, size="8b", is_stock=True),
}
