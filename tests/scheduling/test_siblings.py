"""Batch requests wait for a prefix that a sibling computes; nobody waits for ever."""

import numpy as np
import pytest

from muxcluster.core.request import ServiceClass
from tests.scheduling.rig import SOME_LANES, Rig, model_spec, request, unit_spec


def _family(count: int, service: ServiceClass, shared: int = 24, salt: str = "") -> list:
    prefix = np.arange(shared, dtype=np.int32)
    tails = [np.array([100 + i] * 9, dtype=np.int32) for i in range(count)]
    return [
        request(
            f"{salt}{i}",
            prompt_tokens=np.concatenate((prefix, tail)),
            num_output=3,
            service_class=service,
            cache_salt=salt,
        )
        for i, tail in enumerate(tails)
    ]


def _hits(requests: list, lane: str, packing: str = "priority", num_blocks: int = 400) -> int:
    spec = unit_spec(
        [model_spec("a")], lane=lane, packing=packing, num_blocks=num_blocks, token_budget=256
    )
    rig = Rig(spec)
    rig.add(*requests)
    rig.run()
    rig.check_outputs(requests)
    rig.check_empty()
    return rig.scheduler.stats(0.0, "u").models[0].prefix_hits


@pytest.mark.parametrize("packing", ["priority", "hybrid", "fcfs", "round-robin"])
@pytest.mark.parametrize("lane", SOME_LANES)
def test_a_shared_prefix_of_batch_requests_is_computed_once(lane: str, packing: str) -> None:
    requests = _family(5, ServiceClass.BATCH)
    assert _hits(requests, lane, packing) == 4 * 24


@pytest.mark.parametrize("lane", SOME_LANES)
def test_interactive_requests_wait_for_nobody(lane: str) -> None:
    assert _hits(_family(5, ServiceClass.INTERACTIVE), lane) == 0


@pytest.mark.parametrize("lane", SOME_LANES)
def test_requests_of_another_salt_are_no_siblings(lane: str) -> None:
    mine, others = _family(2, ServiceClass.BATCH), _family(2, ServiceClass.BATCH, salt="x")
    assert _hits([mine[0], others[0], mine[1], others[1]], lane) == 2 * 24


@pytest.mark.parametrize("lane", SOME_LANES)
def test_all_end_where_memory_is_short(lane: str) -> None:
    # 8 columns for sequences of 5: they are preempted and wait again
    _hits(_family(6, ServiceClass.BATCH), lane, num_blocks=4 * 8)
