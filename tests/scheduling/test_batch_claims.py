"""The share of the time that batch work has where interactive requests would take all of it."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muxcluster.core.job import WorkerSpec
from muxcluster.core.request import ServiceClass, Slo
from muxcluster.scheduling.packing.claims import BatchClaims
from tests.scheduling.rig import Rig, model_spec, request, unit_spec

ONE_WORKER = (WorkerSpec(0, (1.0,)),)


@given(
    st.floats(0.02, 0.5), st.lists(st.tuples(st.floats(0.0, 0.2), st.floats(0.0, 1.0)), min_size=1)
)
def test_a_claim_is_the_share_of_the_time_less_what_batch_rows_had(share, jobs) -> None:
    """jobs: seconds until each starts, and the part of the claim that it honours."""
    claims, model, now, had_s = BatchClaims(share, 30.0, 1), SimpleNamespace(), 100.0, 0.0
    model.name, model.has_batch_work = "m", True
    claims.note(model, 0.0, now)
    for gap_s, part in jobs:
        now += gap_s
        owed_s = claims.seconds(model, now)
        assert owed_s == pytest.approx(share * (now - 100.0) - had_s, abs=1e-9)
        claims.note(model, part * owed_s, now)
        had_s += part * owed_s


def test_no_more_is_owed_than_a_period_gives_nor_more_taken_back() -> None:
    claims, model = BatchClaims(0.1, 30.0, 1), SimpleNamespace(name="m", has_batch_work=True)
    claims.note(model, 0.0, 0.0)
    assert claims.seconds(model, 1000.0) == pytest.approx(3.0)
    assert claims.is_starved(model, 1000.0)
    claims.note(model, 500.0, 1000.0)  # batch work had the unit to itself
    assert claims.seconds(model, 1029.0) == 0.0
    assert claims.seconds(model, 1040.0) == pytest.approx(1.0)
    model.has_batch_work = False
    claims.note(model, 0.0, 1040.0)
    model.has_batch_work = True
    claims.note(model, 0.0, 2000.0)  # nothing waited meanwhile
    assert claims.seconds(model, 2000.0) <= 1.0


def test_models_divide_the_share() -> None:
    claims = BatchClaims(0.4, 30.0, 2)
    for name in "ab":
        model = SimpleNamespace(name=name, has_batch_work=True)
        claims.note(model, 0.0, 0.0)
        assert claims.seconds(model, 1.0) == pytest.approx(0.2)


def batch_tokens(share: float, *, num_blocks: int, seconds: float = 40.0) -> tuple[int, int]:
    """Output tokens of both classes while four times as many interactive requests come as fit."""
    spec = unit_spec(
        [model_spec("a", max_seqs=8)],
        num_blocks=num_blocks,
        num_host_blocks=400,
        workers=ONE_WORKER,
        lane="mixed",
        packing="hybrid",
        token_budget=64,
        ageing_s=4.0,
        batch_share=share,
    )
    rig, number = Rig(spec, checks=False), 0
    more = {"num_prompt": 20, "num_output": 20}
    for each in range(400):
        rig.add(request(f"b{each}", service_class=ServiceClass.BATCH, **more))
    start_s = rig.now
    while rig.now < start_s + seconds:
        while number < 40 * (rig.now - start_s):
            rig.add(request(f"u{number}", slo=Slo(0.4, 0.2), **more))
            number += 1
        rig.step()
    found = [
        sum(len(tokens) for name, tokens in rig.tokens.items() if name.startswith(kind))
        for kind in "bu"
    ]
    return found[0], found[1]


@pytest.mark.parametrize("num_blocks", [400, 160])
def test_an_overload_leaves_batch_work_its_share(num_blocks: int) -> None:
    """Also where memory is short; without a share next to nothing is left."""
    none, _ = batch_tokens(0.0, num_blocks=num_blocks)
    some, interactive = batch_tokens(0.2, num_blocks=num_blocks)
    assert none < 0.05 * (some + interactive)
    assert 0.1 < some / (some + interactive) < 0.35
