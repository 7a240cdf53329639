"""Overhead of the engine in a decode step: its forward pass alone, and each layer around it.

The model is that of bench/serving.py. At 1, 8 and 32 sequences of about 100 tokens one decode step
is timed as
- linears: the packed products of the step and nothing else, the least any engine here can take;
- forward: embedding, layers and logits over dense keys and values of the same length, no pool, no
  sampling;
- runner: a job in this process: tables, paged attention, sampling;
- unit: the same through `Unit` with its worker process, seconds between two tokens.
The first three are run in turn, step by step, on all cores. Claims: the runner's step over the bare
forward's, medians.
"""

import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

sys.path.pop(0)  # the script's folder, whose http.py would hide Python's
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from muxcluster.engine.processes.owner_link import ONE_THREAD

if __name__ == "__main__" and any(os.environ.get(name) != ONE_THREAD[name] for name in ONE_THREAD):
    # The C library and OpenMP read these at start: all is measured as in a worker.
    os.execve(sys.executable, sys.orig_argv, {**os.environ, **ONE_THREAD})

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from bench.harness import Bench, Claim, make_parser, percentiles
from bench.serving import CONCURRENCY, make_model
from muxcluster.config.facts import read_facts
from muxcluster.core.events import TokenDelta
from muxcluster.core.job import Admission, Job, Phase, Rows, TableDelta, WorkerSpec
from muxcluster.core.kvshape import KvShape, block_bytes
from muxcluster.core.request import Request
from muxcluster.core.sampling import SamplingParams
from muxcluster.core.unitspec import ModelSpec, SchedulerSpec, UnitSpec
from muxcluster.engine.decoders.torch_decoder import FusedDecoder
from muxcluster.engine.forward.attention import LayerCall
from muxcluster.engine.steps.runner import UnitRunner
from muxcluster.engine.unit.unit import Unit

NAME = "llama-56m"
THREADS = len(os.sched_getaffinity(0))
CONTEXT = 100
BLOCK_TOKENS = 16
MAX_LEN = 256
GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)


def unit_of(path: Path) -> UnitSpec:
    """One model, one worker on all cores."""
    facts = read_facts(path).shape
    shape = KvShape(facts.num_layers, facts.num_kv_heads, facts.head_dim, 4)
    model = ModelSpec(NAME, str(path), shape, facts.vocab_size, MAX_LEN, (), max_seqs=64)
    size = block_bytes(BLOCK_TOKENS, 4)
    columns = -(-MAX_LEN // shape.block_tokens(size))
    return UnitSpec(
        unit_id="u",
        models=(model,),
        num_blocks=64 * columns * shape.blocks_per_column,
        block_bytes=size,
        workers=(WorkerSpec(0, (1.0,)),),
        scheduler=SchedulerSpec(lane="mixed"),
        num_threads=THREADS,
    )


class RunnerSteps:
    """Decode jobs of `num_rows` sequences, as the scheduler would write them."""

    def __init__(self, runner: UnitRunner, num_rows: int) -> None:
        self._runner = runner
        self._rows = np.arange(num_rows, dtype=np.int32)
        self._length = CONTEXT
        tables = runner.arena.model(NAME).tables
        _, layers, kv_heads, columns = tables.shape
        rng = np.random.default_rng(0)
        blocks = rng.permutation(num_rows * columns).astype(np.int32)
        ids = blocks[:, None] * layers * kv_heads + np.arange(layers * kv_heads, dtype=np.int32)
        every = np.arange(columns, dtype=np.int32)
        delta = TableDelta(
            np.repeat(self._rows, columns), np.tile(every, num_rows), ids.astype(np.int32)
        )
        prompts = rng.integers(3, 30_000, (num_rows, CONTEXT)).astype(np.int32)
        admissions = tuple(
            Admission(row, str(row), prompt, CONTEXT, GREEDY) for row, prompt in enumerate(prompts)
        )
        self._run(0, CONTEXT, delta, admissions)

    def __call__(self) -> None:
        nothing = TableDelta(*(np.empty(0, np.int32) for _ in range(2)), np.empty((0, 1), np.int32))
        self._run(self._length, 1, nothing)
        self._length += 1

    def _run(
        self, start: int, count: int, delta: TableDelta, admissions: tuple[Admission, ...] = ()
    ) -> None:
        size = len(self._rows)
        rows = Rows(
            self._rows,
            np.full(size, start, np.int32),
            np.full(size, count, np.int32),
            np.ones(size, dtype=np.bool_),
        )
        phase = Phase.MIXED
        self._runner.execute(Job(0, NAME, phase, 0, 1.0, rows, delta, admissions))


class DenseAttention:
    """Each row attends to a dense cache of `CONTEXT` tokens of its own; nothing is written."""

    def __init__(self, num_rows: int, shape: KvShape) -> None:
        size = (shape.num_layers, 2, num_rows, shape.num_kv_heads, CONTEXT, shape.head_dim)
        self._cache = torch.randn(size)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: LayerCall) -> Tensor:
        keys, values = self._cache[call.layer]
        heads = query.unsqueeze(2)
        attended = scaled_dot_product_attention(
            heads, keys, values, scale=call.scale, enable_gqa=True
        )
        return attended.squeeze(2)


def forward_steps(model: FusedDecoder, num_rows: int, shape: KvShape) -> Callable[[], object]:
    """The bare forward."""
    attention = DenseAttention(num_rows, shape)
    tokens, places = torch.arange(num_rows) + 7, torch.full((num_rows,), CONTEXT)
    wanted = torch.arange(num_rows)
    return lambda: model.logits(tokens, places, attention, wanted)


def linear_steps(model: FusedDecoder, num_rows: int) -> Callable[[], object]:
    """The packed products alone, on inputs of their sizes."""
    linears = [
        each for one in model.layers for each in (one.qkv, one.output, one.gate_up, one.down)
    ]
    inputs = {each.in_features: torch.randn(num_rows, each.in_features) for each in linears}
    return lambda: [each(inputs[each.in_features]) for each in (*linears, model.head)]


def in_turn(steps: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    """Milliseconds of every step, one of each kind after the other."""
    found: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(repeats + 2):
        for name, step in steps.items():
            start_s = time.perf_counter()
            step()
            if number >= 2:
                found[name].append(1e3 * (time.perf_counter() - start_s))
    return found


class Gaps:
    """Times between the outputs of a unit while all of `num_rows` requests decode."""

    def __init__(self, num_rows: int) -> None:
        self._num_rows = num_rows
        self._ended = 0
        self._times: list[float] = []
        self._done = threading.Event()

    def hear(self, deltas: Mapping[str, TokenDelta]) -> None:
        if len(deltas) == self._num_rows:
            self._times.append(time.perf_counter())
        self._ended += sum(delta.finished is not None for delta in deltas.values())
        if self._ended == self._num_rows:
            self._done.set()

    def measure(self, unit: Unit, repeats: int) -> list[float]:
        """Milliseconds a step. Raises RuntimeError where the requests do not end."""
        rng = np.random.default_rng(1)
        sampling = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=repeats)
        for number in range(self._num_rows):
            prompt = rng.integers(3, 30_000, CONTEXT).astype(np.int32)
            unit.submit(Request(f"{self._num_rows}-{number}", NAME, prompt, sampling))
        if not self._done.wait(300):
            raise RuntimeError("the unit did not answer")
        return (1e3 * np.diff(self._times)).tolist()


def unit_gaps(spec: UnitSpec, sizes: tuple[int, ...], repeats: int) -> dict[int, list[float]]:
    """By number of rows: milliseconds between two tokens of a unit with a worker process."""
    heard: dict[str, Gaps] = {}
    unit = Unit(spec, lambda deltas: heard["now"].hear(deltas))
    unit.start()
    try:
        found = {}
        for size in sizes:
            heard["now"] = Gaps(size)
            found[size] = heard["now"].measure(unit, repeats)
        return found
    finally:
        unit.close()


@torch.inference_mode()
def main() -> None:
    """Measure, print a line a batch size, publish."""
    bench = Bench(make_parser(__doc__))
    repeats = 20 if bench.options.quick else 60
    rows: list[dict[str, Any]] = []
    samples: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="bench-overhead-") as folder:
        spec = unit_of(make_model(Path(folder)))
        gaps = unit_gaps(spec, CONCURRENCY, repeats)
        runner = UnitRunner(spec)
        model = runner.memory.forwards[NAME]
        assert isinstance(model, FusedDecoder), "this model runs fused"
        torch.set_num_threads(THREADS)
        for size in CONCURRENCY:
            steps = {
                "linears": linear_steps(model, size),
                "forward": forward_steps(model, size, spec.models[0].shape),
                "runner": RunnerSteps(runner, size),
            }
            times = {**in_turn(steps, repeats), "unit": gaps[size]}
            samples |= {f"{name}_ms at {size}": times[name] for name in times}
            row = {name: percentiles(times[name], 3) for name in times}
            rows.append({"rows": size, **row})
            print(size, {name: values["p50"] for name, values in row.items()}, flush=True)
    claims = [
        Claim(
            f"step_over_bare_forward_at_{row['rows']}",
            round(row["runner"]["p50"] / row["forward"]["p50"], 3),
            "x",
            1.0,
        )
        for row in rows
    ]
    bench.publish(claims, samples, threads=THREADS, context=CONTEXT, rows=rows)


if __name__ == "__main__":
    main()
