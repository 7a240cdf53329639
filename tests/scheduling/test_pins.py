"""Pinned prefixes of batch requests stay while others want memory, and refuse nobody."""

import random

import numpy as np
import pytest

from muxcluster.core.request import PinnedPrefix, Request, ServiceClass
from tests.amounts import examples
from tests.scheduling.rig import LANES, SOME_LANES, Rig, model_spec, request, unit_spec
from tests.scheduling.test_random_runs import (
    WORKERS,
    check_ends,
    random_requests,
    random_step,
)

SHARED = np.arange(24, dtype=np.int32)
COLUMN = 4
"""Blocks that 8 tokens of model `a` take."""


def _rig(num_columns: int, lane: str = "mixed", packing: str = "priority", **more) -> Rig:
    models = [model_spec("a")]
    num_blocks = num_columns * COLUMN
    return Rig(unit_spec(models, lane=lane, packing=packing, num_blocks=num_blocks, **more))


def _member(name: str) -> Request:
    """Three columns of prefix and one of its own."""
    tail = np.full(5, 1000 + ord(name[-1]), dtype=np.int32)
    prompt = np.concatenate((SHARED, tail))
    return _batch(name, prompt_tokens=prompt, num_output=2)


def _batch(name: str, **fields) -> Request:
    return request(name, service_class=ServiceClass.BATCH, **fields)


def _hits(rig: Rig) -> int:
    return rig.scheduler.stats(rig.now, "u").models[0].prefix_hits


def _others(service_class: ServiceClass) -> list[Request]:
    """Four columns each."""
    fields = {"num_prompt": 25, "num_output": 4, "service_class": service_class}
    return [request(f"other {i}", **fields) for i in range(6)]


@pytest.mark.parametrize("lane", SOME_LANES)
def test_a_pinned_prefix_is_computed_once_though_memory_is_short(lane: str) -> None:
    hits = {}
    for is_pinned in (True, False):
        rig = _rig(10, lane)
        if is_pinned:
            rig.scheduler.batch_memory.pin(PinnedPrefix("p", "a", SHARED))
        rig.add(_member("m0"))
        rig.run()
        rig.add(*_others(ServiceClass.BATCH))
        rig.run()
        assert not rig.preempted
        rig.add(_member("m1"))
        rig.run()
        hits[is_pinned] = _hits(rig)
    assert hits == {True: len(SHARED), False: 0}


def test_a_freed_prefix_is_evicted_like_any_other() -> None:
    rig = _rig(10)
    rig.scheduler.batch_memory.pin(PinnedPrefix("p", "a", SHARED))
    rig.add(_member("m0"))
    rig.run()
    rig.scheduler.batch_memory.unpin("p")
    rig.add(*_others(ServiceClass.BATCH))
    rig.run()
    rig.add(_member("m1"))
    rig.run()
    assert _hits(rig) == 0


def test_of_nested_pins_what_another_one_needs_stays() -> None:
    rig = _rig(10)
    rig.scheduler.batch_memory.pin(PinnedPrefix("all", "a", SHARED))
    rig.scheduler.batch_memory.pin(PinnedPrefix("half", "a", SHARED[:16]))
    rig.add(_member("m0"))
    rig.run()
    rig.scheduler.batch_memory.unpin("all")
    rig.add(*_others(ServiceClass.BATCH))
    rig.run()
    rig.add(_member("m1"))
    rig.run()
    assert _hits(rig) == 16


@pytest.mark.parametrize("packing", ["priority", "fcfs"])
def test_interactive_requests_get_what_is_pinned(packing: str) -> None:
    """They run side by side as if nothing were pinned."""
    most = {}
    for is_pinned in (True, False):
        rig = _rig(10, packing=packing)
        rig.add(_member("m0"))
        rig.run()
        if is_pinned:
            rig.scheduler.batch_memory.pin(PinnedPrefix("p", "a", SHARED))
        rig.add(*_others(ServiceClass.INTERACTIVE))
        rig.run()
        assert not rig.preempted
        most[is_pinned] = [(job.phase, len(job.rows)) for job in rig.jobs]
    assert most[True] == most[False]


def test_batch_requests_wait_for_pins_only_while_others_could_make_room() -> None:
    """The pins hold half the pool; a batch request that needs more is admitted when it is alone."""
    rig = _rig(8)
    rig.scheduler.batch_memory.pin(PinnedPrefix("p", "a", SHARED))
    rig.add(_member("m0"))
    rig.run()
    large = _batch("large", num_prompt=50, num_output=4)
    rig.add(large)
    rig.run()
    rig.check_outputs([large])


def test_a_sequence_that_grows_takes_pinned_blocks_before_it_preempts_another() -> None:
    rig = _rig(8)
    rig.scheduler.batch_memory.pin(PinnedPrefix("p", "a", SHARED))
    rig.add(_member("m0"))
    rig.run()
    growing = [_batch(f"g{i}", num_prompt=7, num_output=24) for i in range(2)]
    rig.add(*growing)
    rig.run()
    assert not rig.preempted
    rig.check_outputs(growing)


@pytest.mark.parametrize("packing", ["priority", "fcfs", "hybrid"])
def test_random_runs_with_pins_end_and_leak_nothing(packing: str) -> None:
    assert (
        sum(_random_run(lane, packing, seed) for lane in LANES for seed in range(examples(2, 6)))
        > 0
    )


def _random_run(lane: str, packing: str, seed: int) -> int:
    """To the end of all requests and pins; the idle pinned blocks of all steps."""
    rng = random.Random(f"pins {lane} {packing} {seed}")
    spec = unit_spec(
        lane=lane,
        packing=packing,
        num_blocks=rng.choice((36, 60, 90, 160)),
        num_host_blocks=rng.choice((0, 40, 400)),
        workers=rng.choice(WORKERS),
        token_budget=rng.choice((5, 16, 64)),
    )
    rig, num_pinned = Rig(spec, seed), 0
    waiting = random_requests(rng, seed, 14)
    asked = {each.request_id: each for each in waiting}
    while waiting or rig.num_open:
        random_step(rng, rig, waiting, asked)
        _random_pin(rng, rig, list(asked.values()))
        num_pinned += rig.scheduler._kv.pins.idle_blocks
    while rig.running:
        rig.finish()
    check_ends(rig, asked)
    for number in range(4):
        rig.scheduler.batch_memory.unpin(str(number))
    assert not rig.scheduler._kv.pins.idle_blocks
    rig.scheduler._kv.drop_cache()
    rig.check()
    assert rig.scheduler.stats(rig.now, "u").free_blocks == spec.num_blocks
    return num_pinned


def _random_pin(rng: random.Random, rig: Rig, asked: list[Request]) -> None:
    memory, pin_id = rig.scheduler.batch_memory, str(rng.randrange(4))
    draw = rng.random()
    planned = [each for each in asked if each.service_class is ServiceClass.BATCH]
    if draw < 0.4 and planned:
        each = rng.choice(planned)
        prefix = each.prompt_tokens[: rng.randint(8, 44)]
        memory.pin(PinnedPrefix(pin_id, each.model, prefix, each.cache_salt))
    elif draw < 0.45:
        memory.unpin(pin_id)
