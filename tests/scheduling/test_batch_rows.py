"""Batch sequences have rows beside those of interactive ones, which find theirs all the same."""

import numpy as np
import pytest

from muxcluster.core.request import ServiceClass, Slo
from tests.scheduling.rig import SOME_LANES, Rig, model_spec, request, unit_spec

BATCH = ServiceClass.BATCH


def rig_of(lane: str, packing: str, *, batch_seqs: int = 20, max_seqs: int = 4) -> Rig:
    models = [model_spec("a", max_seqs=max_seqs, batch_seqs=batch_seqs)]
    policy = {"lane": lane, "packing": packing, "token_budget": 256, "max_decode_rows": 24}
    return Rig(unit_spec(models, num_blocks=4 * 400, num_host_blocks=100, **policy))


def held(rig: Rig) -> tuple[int, int]:
    """Rows that interactive and batch sequences hold."""
    table = rig.scheduler._models["a"].running
    return table.num_live - table.num_batch, table.num_batch


def batch(count: int, num_output: int = 30) -> list:
    return [
        request(f"b{i}", num_prompt=9, num_output=num_output, service_class=BATCH)
        for i in range(count)
    ]


@pytest.mark.parametrize("packing", ["priority", "hybrid"])
@pytest.mark.parametrize("lane", SOME_LANES)
def test_batch_sequences_hold_more_rows_than_max_seqs(lane: str, packing: str) -> None:
    rig, asked = rig_of(lane, packing), batch(40)
    rig.add(*asked)
    most = 0
    while rig.num_open:
        rig.step()
        most = max(most, held(rig)[1])
    rig.check_outputs(asked)
    rig.check_empty()
    assert 20 <= most < 24, "one row stays free for an interactive request"


@pytest.mark.parametrize("packing", ["priority", "hybrid", "fcfs"])
@pytest.mark.parametrize("lane", SOME_LANES)
def test_interactive_sequences_hold_at_most_max_seqs(lane: str, packing: str) -> None:
    rig = rig_of(lane, packing)
    asked = [request(f"i{i}", num_output=12) for i in range(15)]
    rig.add(*asked)
    most = 0
    while rig.num_open:
        rig.step()
        most = max(most, held(rig)[0])
    rig.check_outputs(asked)
    assert most == 4


def test_an_interactive_request_finds_a_row_amid_batch_work() -> None:
    rig = rig_of("mixed", "hybrid")
    rig.add(*batch(60))
    while held(rig)[1] < 20:
        rig.step()
    rig.add(request("urgent", num_output=3, slo=Slo(0.5, 0.2)))
    for _ in range(6):
        rig.step()
    assert "urgent" in rig.first_token_s
    assert not rig.preempted
    rig.run()


@pytest.mark.parametrize("seed", range(3))
def test_random_runs_of_both_classes(seed: int) -> None:
    rig = rig_of("mixed", "hybrid", batch_seqs=6)
    draw = np.random.default_rng(seed)
    asked = []
    for i in range(80):
        service = BATCH if draw.random() < 0.7 else ServiceClass.INTERACTIVE
        lengths = {"num_prompt": int(draw.integers(1, 40)), "num_output": int(draw.integers(1, 16))}
        asked.append(request(f"r{i}", service_class=service, **lengths))
        rig.add(asked[-1])
        rig.step()
        assert held(rig)[0] <= 4 and sum(held(rig)) <= 10
    rig.run()
    rig.check_outputs(asked)
    rig.check_empty()
