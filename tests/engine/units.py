"""Units of real tiny models for tests: specifications, requests, running them to the end."""

import random
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain, repeat
from pathlib import Path

import numpy as np

from muxcluster.core.events import FinishReason
from muxcluster.core.job import Phase, WorkerSpec
from muxcluster.core.request import Request
from muxcluster.core.sampling import SamplingParams
from muxcluster.core.unitspec import SchedulerSpec, UnitSpec
from muxcluster.engine.executor import Executor
from muxcluster.engine.unit.clock import Clock
from muxcluster.engine.unit.unit import Unit
from tests.blocks import block_tokens, scaled
from tests.engine.fakes import Sink
from tests.models import model_spec


def spec_of(
    directories: Iterable[Path],
    *,
    num_columns: int = 200,
    lane: str = "adbs",
    partition: str = "threads",
    max_seqs: int = 16,
    kv_dtypes: Sequence[str] = (),
) -> UnitSpec:
    """A unit of the models in `directories`, named after them.

    num_columns: size of the pool in columns of the largest model. A block holds 8 tokens of the
    model with the widest heads, so that tiny requests grow by several columns. kv_dtypes: of each
    model; by default all keys and values are in its dtype.
    """
    models = tuple(
        model_spec(
            path,
            path.name,
            max_seqs=max_seqs,
            max_model_len=scaled(256, 8),
            kv_dtype=kv_dtype,
        )
        for path, kv_dtype in zip(directories, chain(kv_dtypes, repeat("auto")), strict=False)
    )
    half = (0.5,)
    workers: tuple[WorkerSpec, ...] = (
        WorkerSpec(0, half, frozenset({Phase.PREFILL})),
        WorkerSpec(1, half, frozenset({Phase.DECODE})),
    )
    if lane in ("temporal", "mixed"):
        workers = (WorkerSpec(0, (1.0,)),)
    return UnitSpec(
        unit_id="unit-0",
        models=models,
        num_blocks=num_columns * max(m.shape.blocks_per_column for m in models),
        block_bytes=block_tokens(8) * max(2 * m.shape.slot_bytes for m in models),
        workers=workers,
        scheduler=SchedulerSpec(lane=lane, token_budget=64, quota_period_s=1e4),
        partition=partition,
        num_threads=1,
    )


def prompts(
    model: str,
    count: int,
    vocab_size: int,
    *,
    shared: int = 0,
    longest: int = 50,
    seed: int = 0,
) -> dict[str, list[int]]:
    """Random prompts by request id: `shared` tokens that are the same in all, then 1 to `longest`
    of their own."""
    rng = random.Random(f"{model}{seed}")
    prefix = [rng.randrange(vocab_size) for _ in range(shared)]
    return {
        f"{model}/{seed}/{i}": prefix
        + [rng.randrange(vocab_size) for _ in range(rng.randint(1, longest))]
        for i in range(count)
    }


def greedy(max_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)


def request_of(request_id: str, prompt: Sequence[int], sampling: SamplingParams) -> Request:
    """A request of the model that the id begins with."""
    model = request_id.split("/")[0]
    return Request(request_id, model, np.asarray(prompt, dtype=np.int32), sampling)


@contextmanager
def running(
    spec: UnitSpec, executor: Executor | None = None, clock: Clock | None = None
) -> Iterator[tuple[Unit, Sink]]:
    """A started unit; closed at the end."""
    sink = Sink()
    unit = Unit(spec, sink, clock, executor=executor)
    unit.start()
    try:
        yield unit, sink
    finally:
        unit.close()


def submit(
    unit: Unit, asked: dict[str, list[int]], sampling: SamplingParams, *, seeded: bool = False
) -> None:
    """Submit all; with `seeded`, request i gets seed i."""
    for i, (request_id, prompt) in enumerate(asked.items()):
        own = replace(sampling, seed=i) if seeded else sampling
        unit.submit(request_of(request_id, prompt, own))


def check_lengths(sink: Sink, asked: Iterable[str], num_tokens: int) -> None:
    """Every request ran to its `max_tokens`."""
    for request_id in asked:
        assert sink.reason(request_id) is FinishReason.LENGTH, sink.ends[request_id]
        assert len(sink.tokens[request_id]) == num_tokens


def check_nothing_leaks(unit: Unit) -> None:
    """After all requests ended every block is free or only cached."""
    stats = unit.stats()
    assert stats.free_blocks + sum(m.cached_blocks for m in stats.models) == stats.num_blocks
    assert sum(m.used_blocks for m in stats.models) == 0
    assert sum(m.num_running + m.num_waiting for m in stats.models) == 0
