"""The hybrid packing in steady state: half of the requests interactive, half batch, memory short.

The pool holds less than what all requests need, and interactive ones come in bursts, so batch
sequences lend blocks as interactive ones come and grow, what is overwritten is saved, and they are
restored as interactive ones end: at the rate that lengths and bursts imply, which is stated.

512 or 4,096 requests are in the unit all the time, in its rows or waiting, over all its models. A
step is one `next_jobs` and one `complete`, of a job of one model: so with 8 models a job has some
eighth of the rows there are, with one model nearly all. `us_per_row` tells whether time grows
faster than rows.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, product
from typing import Any

import numpy as np

from bench.harness import percentiles
from bench.scheduling.load import Lengths, Profiled, SteadyLoad, unit_spec, work_s
from bench.scheduling.timing import Clock, measure
from muxcluster.core.events import StepOutput
from muxcluster.core.kvshape import KvShape
from muxcluster.core.request import Request, ServiceClass, Slo
from muxcluster.core.unitspec import SchedulerSpec, UnitSpec

HYBRID_TARGET_US = 600.0  # Issue 7: 2 % of a step of 30 ms
CLAIMED_SIZE = 512
HYBRID_SIZES = (CLAIMED_SIZE, 4096)
# Lane and number of models. With one model every step covers all rows there are.
LANES = (("adbs", 8), ("mixed", 8), ("mixed", 1))
_POOL = 0.8  # Blocks over what all requests need on average
_ROUNDS = 1.5  # TPOT target over the time of a turn of all models with all rows in it
_FIRST_TOKENS = 10  # TTFT target in TPOT targets
_BURST = 64  # Steps a model between two bursts of interactive requests
_SETTLING = 128  # Steps a model after memory became short and before any is timed


@dataclass(frozen=True, slots=True, eq=False)
class HybridCase:
    """`num_requests` requests over `num_models` models of one shape, under one lane."""

    shape_name: str
    shape: KvShape
    lane: str
    num_models: int
    num_requests: int
    lengths: Lengths

    @property
    def name(self) -> str:
        models = f"{self.num_models} model{'s' if self.num_models > 1 else ''}"
        return f"{self.shape_name}, {self.lane}, {models}, {self.num_requests}"

    @property
    def claim(self) -> str:
        """The name of its median step."""
        return f"hybrid_{self.lane}_{self.num_models}_step_us_p50_at_{self.num_requests}"


def hybrid_cases(
    shapes: Sequence[tuple[str, KvShape]], sizes: Sequence[int], lengths: Lengths
) -> Iterator[HybridCase]:
    """Every shape under every lane at every size; the first shape is the claimed one."""
    for (name, shape), (lane, num_models), size in product(shapes, LANES, sizes):
        yield HybridCase(name, shape, lane, num_models, size, lengths)


def hybrid_spec(case: HybridCase) -> UnitSpec:
    """A unit with too few blocks, host memory for all that batch sequences can lend."""
    plain = unit_spec(case.shape, case.num_models, case.num_requests, case.lengths.mean_live_tokens)
    tpot_s = _tpot_s(case)
    column = case.shape.blocks_per_column
    width = case.shape.block_tokens(plain.block_bytes)
    columns = case.num_requests * (case.lengths.mean_live_tokens / width + 1)
    most = -(-plain.models[0].max_model_len // width) * case.num_models
    slo = Slo(_FIRST_TOKENS * tpot_s, tpot_s)
    return replace(
        plain,
        models=tuple(replace(model, slo=slo) for model in plain.models),
        num_blocks=max(int(_POOL * columns), most) * column,
        num_host_blocks=int(columns) * column,
        scheduler=SchedulerSpec(
            lane=case.lane, packing="hybrid", max_decode_rows=plain.models[0].max_seqs
        ),
    )


def _tpot_s(case: HybridCase) -> float:
    return _ROUNDS * case.num_models * work_s(case.num_requests / case.num_models)


class HybridLoad(SteadyLoad):
    """As many interactive as batch requests of every model, in the memory there is.

    A batch request that ends is replaced at once, interactive ones are every 64 turns of all
    models: a burst of about a fifth of their number, since they end after 338 tokens on average.
    """

    @property
    def num_held(self) -> int:
        """Interactive requests that come with the next burst."""
        return len(self._held)

    def replacements(self, output: StepOutput) -> list[Request]:
        """New requests: of the same model and class for each that ended, now or with others."""
        ended = self._forget_ended(output)
        due = [kind for kind in ended if kind[1] is ServiceClass.BATCH]
        self._held += [kind for kind in ended if kind[1] is ServiceClass.INTERACTIVE]
        self._num_steps += 1
        if self._num_steps % (_BURST * len(self._spec.models)) == 0:
            due, self._held = due + self._held, []
        return [self._request(kind, *self._lengths.draw(self._rng)) for kind in due]

    def _fill(self, num_running: int) -> None:
        """Let everybody in and run until memory is short, and then for a while."""
        self._held: list[tuple[str, ServiceClass]] = []
        self._num_steps = 0
        kinds = cycle(product([model.name for model in self._spec.models], ServiceClass))
        for prompt, output, age in self._lengths.aged(num_running, self._rng):
            model, service = next(kinds)
            self._add(model, prompt, output, age, service)
        num_models = len(self._spec.models)
        for _ in range(_SETTLING + num_running):
            measure(self, num_models)
            if _totals(self)["num_lent_columns"]:
                break
        measure(self, _SETTLING * num_models)


def run_hybrid(
    case: HybridCase, num_steps: int, seed: int, clock: Clock
) -> tuple[dict[str, Any], list[float]]:
    """The case's figures and its samples (µs per step, in order)."""
    spec = hybrid_spec(case)
    rng = np.random.default_rng(seed)
    load = HybridLoad(spec, case.lengths, case.num_requests, rng, Profiled())
    measure(load, num_steps // 4)
    before, began_s = _totals(load), load.now
    timings = measure(load, num_steps, clock)
    seconds = load.now - began_s
    grown = {name: count - before[name] for name, count in _totals(load).items()}
    step_us = np.array(timings.next_jobs_us) + np.array(timings.complete_us)
    has_copies = np.array(timings.has_copies)
    stats = load.scheduler.stats(load.now, "")
    figures = {
        "case": case.name,
        "shape": case.shape_name,
        "blocks_per_column": case.shape.blocks_per_column,
        "lane": case.lane,
        "num_models": case.num_models,
        "num_requests": case.num_requests,
        "num_with_memory_at_end": sum(model.num_running for model in stats.models),
        "num_blocks": spec.num_blocks,
        "num_host_blocks": spec.num_host_blocks,
        "tpot_target_s": round(_tpot_s(case), 3),
        "step_us": percentiles(step_us),
        "next_jobs_us": percentiles(timings.next_jobs_us),
        "complete_us": percentiles(timings.complete_us),
        "step_us_with_copies": percentiles(step_us[has_copies]) if has_copies.any() else None,
        "add_us": percentiles(timings.add_us) if timings.add_us else None,
        "num_steps": num_steps,
        "virtual_seconds": round(seconds, 1),
        "mean_rows": round(float(np.mean(timings.num_rows)), 1),
        "us_per_row": round(float(step_us.sum() / np.sum(timings.num_rows)), 2),
        "jobs_with_copies": round(float(has_copies.mean()), 3),
        **{f"{name}_per_step": round(count / num_steps, 3) for name, count in grown.items()},
        "num_ended": timings.num_ended,
    }
    return figures, [round(value, 1) for value in step_us.tolist()]


def _totals(load: SteadyLoad) -> dict[str, int]:
    """Of all models since the start."""
    names = "num_lent_columns", "num_saved_slots", "num_restored_slots", "num_preemptions"
    models = load.scheduler.stats(load.now, "").models
    return {name: sum(getattr(model, name) for model in models) for name in names}
