"""Requests of both classes share prefixes where nothing forbids it; nobody reads wrong tokens."""

import numpy as np
import pytest

from muxcluster.core.request import PinnedPrefix, Request, ServiceClass
from tests.scheduling.rig import SOME_LANES, Rig, model_spec, request, unit_spec

SHARED = np.arange(24, dtype=np.int32)
CLASSES = (ServiceClass.INTERACTIVE, ServiceClass.BATCH)


def member(name: str, service: ServiceClass, **fields) -> Request:
    """Three columns of a prefix, then tokens of its own."""
    tail = np.full(5, 1000 + ord(name[-1]), dtype=np.int32)
    prompt = np.concatenate((SHARED, tail))
    return request(name, prompt_tokens=prompt, num_output=6, service_class=service, **fields)


def rig_of(lane: str, packing: str, **more) -> Rig:
    models = [model_spec("a", is_unordered=more.pop("is_unordered", True))]
    more.setdefault("num_blocks", 400)
    return Rig(unit_spec(models, lane=lane, packing=packing, token_budget=64, **more))


def hits(rig: Rig) -> int:
    return rig.scheduler.stats(rig.now, "u").models[0].prefix_hits


@pytest.mark.parametrize("packing", ["priority", "hybrid", "fcfs"])
@pytest.mark.parametrize("lane", SOME_LANES)
@pytest.mark.parametrize("first", CLASSES)
def test_a_prefix_of_one_class_is_read_by_the_other(
    lane: str, packing: str, first: ServiceClass
) -> None:
    second = CLASSES[1 - CLASSES.index(first)]
    rig = rig_of(lane, packing, num_host_blocks=100)
    asked = [member("x", first), member("y", second), member("z", first)]
    for each in asked:
        rig.add(each)
        rig.run()
    rig.check_outputs(asked)
    rig.check_empty()
    assert hits(rig) == 2 * len(SHARED)


@pytest.mark.parametrize("packing", ["priority", "hybrid"])
def test_a_model_that_takes_tokens_in_order_shares_within_a_class_alone(packing: str) -> None:
    rig = rig_of("mixed", packing, is_unordered=False)
    asked = [member("x", CLASSES[0]), member("y", CLASSES[1]), member("z", CLASSES[1])]
    for each in asked:
        rig.add(each)
        rig.run()
    rig.check_outputs(asked)
    assert hits(rig) == len(SHARED)


@pytest.mark.parametrize("lane", SOME_LANES)
def test_a_batch_request_waits_for_an_interactive_one_that_computes_its_prefix(lane: str) -> None:
    rig = rig_of(lane, "hybrid")
    asked = [member("x", ServiceClass.INTERACTIVE), member("y", ServiceClass.BATCH)]
    rig.add(*asked)
    rig.run()
    rig.check_outputs(asked)
    assert hits(rig) == len(SHARED)


def test_a_pin_of_a_batch_job_holds_what_an_interactive_request_computed() -> None:
    rig = rig_of("mixed", "hybrid", num_blocks=10 * 4)
    rig.scheduler.batch_memory.pin(PinnedPrefix("p", "a", SHARED))
    rig.add(member("x", ServiceClass.INTERACTIVE))
    rig.run()
    others = [request(f"o{i}", num_prompt=25, service_class=ServiceClass.BATCH) for i in range(6)]
    rig.add(*others)
    rig.run()
    before = hits(rig)
    rig.add(member("y", ServiceClass.BATCH))
    rig.run()
    assert hits(rig) == before + len(SHARED)


@pytest.mark.parametrize("seed", range(4))
def test_both_classes_share_where_memory_is_short(seed: int) -> None:
    """Sequences lend, are saved and restored amid prefixes that both classes read."""
    rig = Rig(
        unit_spec(
            [model_spec("a")],
            lane="mixed",
            packing="hybrid",
            token_budget=64,
            num_blocks=4 * 14,
            num_host_blocks=4 * 30,
        ),
        seed=seed,
    )
    draw = np.random.default_rng(seed)
    asked = []
    for number in range(60):
        service = CLASSES[int(draw.integers(2))]
        prompt = np.concatenate((SHARED[: 8 * draw.integers(4)], np.full(6, 900 + number)))
        fields = {"prompt_tokens": prompt.astype(np.int32), "service_class": service}
        asked.append(request(f"r{number}", num_output=int(draw.integers(3, 24)), **fields))
        rig.add(asked[-1])
        for _ in range(int(draw.integers(1, 4))):
            rig.step()
    rig.run()
    rig.check_outputs(asked)
    rig.check_empty()
    stats = rig.scheduler.stats(rig.now, "u").models[0]
    assert stats.prefix_hits > 8 * 20
