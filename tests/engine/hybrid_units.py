"""Units that pack both classes into a pool that batch requests overfill: tests' common ground."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from muxcluster.core.job import Job, WorkerSpec
from muxcluster.core.request import Request, ServiceClass
from muxcluster.core.served import ModelStats, UnitStats
from muxcluster.core.unitspec import SchedulerSpec, UnitSpec
from muxcluster.engine.unit.unit import Unit
from tests.blocks import block_tokens, scaled
from tests.engine.fakes import Sink
from tests.engine.lockstep import Lockstep, Script
from tests.engine.units import check_lengths, check_nothing_leaks, greedy, running
from tests.models import model_spec
from tests.oracles import GreedyOracle

BLOCK_TOKENS = block_tokens(8)
"""Of the model with the widest heads."""
NUM_BATCH, NUM_URGENT = 3, 4
"""Batch requests of a model, and interactive ones of a wave."""
NUM_BLOCKS = 330
"""What the batch requests may need at their ends, and a little more than a wave may."""
BATCH_TOKENS, URGENT_TOKENS = scaled(40, 8), scaled(12, 8)
Prompts = dict[str, list[int]]


def hybrid_spec(
    directories: Mapping[str, Path],
    *,
    num_blocks: int = NUM_BLOCKS,
    partition: str = "none",
    lane: str = "mixed",
    prefix_caching: bool = True,
    max_seqs: int = 16,
    workers: tuple[WorkerSpec, ...] = (WorkerSpec(0, (1.0,)),),
    host_frames: int = 4,
    kv_dtype: str = "auto",
) -> UnitSpec:
    """host_frames: for each block of the pool."""
    models = tuple(
        model_spec(
            path,
            name,
            max_seqs=max_seqs,
            max_model_len=scaled(128, 8),
            prefix_caching=prefix_caching,
            kv_dtype=kv_dtype,
        )
        for name, path in directories.items()
    )
    return UnitSpec(
        unit_id="unit-0",
        models=models,
        num_blocks=num_blocks,
        block_bytes=BLOCK_TOKENS * max(2 * model.shape.slot_bytes for model in models),
        workers=workers,
        scheduler=SchedulerSpec(
            lane=lane,
            packing="hybrid",
            token_budget=scaled(64, 8),
            quota_period_s=1e4,
            ageing_s=0.5,
        ),
        partition=partition,
        num_threads=1,
        num_host_blocks=host_frames * num_blocks,
    )


@dataclass(slots=True)
class SavedBlocks:
    """Blocks of which some job saved slots: an interactive sequence wrote over a batch one."""

    spec: UnitSpec
    blocks: set[int] = field(default_factory=set)

    def __call__(self, job: Job) -> None:
        shapes = {model.name: model.shape for model in self.spec.models}
        for each in job.copies:
            tokens = shapes[each.model].block_tokens(self.spec.block_bytes)
            self.blocks.update((each.saves[:, 0] // tokens).tolist())


class Crowd:
    """Requests of both classes and what became of them."""

    def __init__(self, spec: UnitSpec, unit: Unit, sink: Sink, seed: int = 0) -> None:
        self._spec, self._unit, self._sink = spec, unit, sink
        self._rng = np.random.default_rng(seed)
        self.asked: Prompts = {}
        self.num_tokens: dict[str, int] = {}

    def submit(self, kind: str, count: int, num_tokens: int, *, shared: int = 0) -> list[str]:
        """`count` requests of every model. kind: of an id; "batch..." is the batch class.

        shared: so many first tokens are the same in all of them.
        """
        is_batch = kind.startswith("batch")
        service = ServiceClass.BATCH if is_batch else ServiceClass.INTERACTIVE
        for model in self._spec.models:
            prefix = np.arange(3, 3 + shared)
            for i in range(count):
                length = self._rng.integers(scaled(30, 8) - shared, scaled(40, 8) - shared)
                own = self._rng.integers(3, model.vocab_size, length)
                prompt = np.concatenate((prefix, own)).astype(np.int32)
                name = f"{model.name}/{kind}/{i}"
                self.asked[name], self.num_tokens[name] = prompt.tolist(), num_tokens
                sampling = greedy(num_tokens)
                self._unit.submit(
                    Request(name, model.name, prompt, sampling, service_class=service)
                )
        return [name for name in self.asked if name.split("/")[1] == kind]

    def have(self, names: Iterable[str], num_tokens: int) -> bool:
        """Whether each of these requests has got so many tokens."""
        return all(len(self._sink.tokens.get(name, ())) >= num_tokens for name in names)

    def have_ended(self) -> bool:
        """Whether all requests have."""
        return self.asked.keys() == self._sink.ends.keys()

    def finish(self) -> None:
        """All ended with all their tokens, and nothing is left behind."""
        assert self.have_ended()
        for name, num_tokens in self.num_tokens.items():
            check_lengths(self._sink, [name], num_tokens)
        check_nothing_leaks(self._unit)

    def check(self, oracles: Mapping[str, GreedyOracle]) -> None:
        """Every output is Hugging Face's; near-ties are excused and counted."""
        for oracle in oracles.values():
            oracle.num_near_ties = 0
        for name, prompt in self.asked.items():
            oracles[name.split("/")[0]].check(prompt, self._sink.tokens[name])
        assert sum(o.num_near_ties for o in oracles.values()) <= len(self.asked) // 20


@dataclass(frozen=True, slots=True)
class Served:
    """What became of a crowd, and what the unit said of itself at the end."""

    crowd: Crowd
    stats: UnitStats


def both_classes(crowd: Crowd, *, num_waves: int = 12) -> Script:
    """Batch requests fill the pool, then interactive ones come wave after wave, all to their ends.

    They share a prefix that fills a block or two.
    """
    batch = crowd.submit("batch", NUM_BATCH, BATCH_TOKENS)
    firsts = {name.split("/")[0]: name for name in reversed(batch)}.values()
    yield lambda: crowd.have(firsts, 3)
    for wave in range(num_waves):
        names = crowd.submit(f"urgent{wave}", NUM_URGENT, URGENT_TOKENS, shared=scaled(16, 8))
        yield lambda names=names: crowd.have(names, URGENT_TOKENS)
    yield crowd.have_ended


def serve_both(spec: UnitSpec, lockstep: Lockstep, *, num_waves: int = 12) -> Served:
    """A unit's whole life: `both_classes`, all of which got all their tokens."""
    with running(spec, lockstep, lockstep) as (unit, sink):
        crowd = Crowd(spec, unit, sink)
        lockstep.play(both_classes(crowd, num_waves=num_waves))
        crowd.finish()
        return Served(crowd, unit.stats())


def total(models: Iterable[ModelStats]) -> dict[str, int]:
    """Sums of the models' counters that tell of lending."""
    names = ("lent_columns", "saved_slots", "restored_slots", "recomputed_tokens")
    found = list(models)
    return {name: sum(getattr(m, f"num_{name}") for m in found) for name in names}
