"""A request's time by stage: what counts as what, and that the parts make the whole."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muxcluster.core.events import Finished
from muxcluster.core.job import WorkerSpec
from muxcluster.scheduling.state.requests import Stage, TimeAccount
from tests.scheduling.rig import Rig, model_spec, request, unit_spec

CALLS = st.sampled_from(("launch", "sample", "preempt", "fail"))


def call(account: TimeAccount, name: str, now: float) -> None:
    if name == "launch":
        account.launch(now)
    elif name == "sample" and account.has_started:
        account.launch(now)
        account.sample(now)
    elif account.has_started:
        account.set_back(now, keeps_memory=name == "fail")


@given(
    st.lists(st.tuples(CALLS, st.floats(0.0, 1e4, allow_subnormal=False)), max_size=40),
    st.booleans(),
)
def test_the_parts_make_the_whole(calls: list[tuple[str, float]], has_output: bool) -> None:
    now = start_s = 12_345.678
    account = TimeAccount(now, has_output=has_output)
    for name, elapsed_s in calls:
        now += elapsed_s
        call(account, name, now)
    seconds = account.close(now)
    assert min(seconds.values()) >= 0
    assert sum(seconds.values()) == pytest.approx(now - start_s, abs=1e-9 * max(1.0, now))


@pytest.mark.parametrize(
    ("calls", "stages"),
    [
        (["launch", "sample"], {"queue": 1, "prefill": 1, "decode": 1}),
        (["launch", "launch", "sample"], {"queue": 1, "prefill": 2, "decode": 1}),
        (
            ["launch", "sample", "preempt", "launch", "sample"],
            {"queue": 1, "prefill": 1, "decode": 2, "preempted": 1, "restore": 1},
        ),
        (
            ["launch", "sample", "fail", "launch"],
            {"queue": 1, "prefill": 1, "decode": 2, "preempted": 1},
        ),
        (
            ["launch", "preempt", "launch", "sample"],
            {"queue": 1, "prefill": 2, "preempted": 1, "decode": 1},
        ),
        (
            ["launch", "sample", "fail", "preempt", "launch"],
            {"queue": 1, "prefill": 1, "decode": 1, "preempted": 2, "restore": 1},
        ),
        ([], {"queue": 1}),
    ],
)
def test_every_second_has_its_stage(calls: list[str], stages: dict[str, float]) -> None:
    """One second passes before each call, and one before the end."""
    account = TimeAccount(0.0, has_output=False)
    now = 0.0
    for name in calls:
        now += 1.0
        call(account, name, now)
    seconds = account.close(now + 1.0)
    assert {stage.value: value for stage, value in seconds.items() if value} == stages


def test_output_from_a_lost_unit_makes_its_prefill_a_restore() -> None:
    account = TimeAccount(0.0, has_output=True)
    account.launch(1.0)
    account.sample(3.0)
    seconds = account.close(3.5)
    assert (seconds[Stage.PREFILL], seconds[Stage.RESTORE]) == (0.0, 2.0)


def test_times_of_an_undisturbed_request() -> None:
    rig = Rig(unit_spec())
    rig.add(request("r"))
    rig.now += 1.0
    rig.run()
    end = rig.ends["r"]
    assert isinstance(end, Finished)
    assert end.queue_s == pytest.approx(1.0)
    assert end.queue_s + end.prefill_s == pytest.approx(rig.first_token_s["r"] - 100.0)
    assert end.decode_s == pytest.approx(rig.now - rig.first_token_s["r"])
    assert end.decode_running_s == pytest.approx(end.decode_s)  # nobody else was there
    assert end.preempted_s == end.restore_s == 0.0


def test_decode_that_waits_for_another_model_is_not_running() -> None:
    rig = Rig(unit_spec(lane="temporal", workers=(WorkerSpec(0, (1.0,)),)))
    rig.add(*(request(model, model, num_output=20) for model in "ab"))
    rig.run()
    ends = [rig.ends[model] for model in "ab"]
    for end in ends:
        assert isinstance(end, Finished)
        assert 0.3 * end.decode_s < end.decode_running_s < 0.7 * end.decode_s


def test_preemption_costs_waiting_and_restoring() -> None:
    rig = Rig(unit_spec([model_spec("a")], lane="temporal", num_blocks=48))
    rig.add(*(request(f"{i}", "a", num_prompt=10, num_output=30) for i in range(4)))
    rig.run()
    ends = [end for end in rig.ends.values() if isinstance(end, Finished)]
    assert any(end.num_preemptions for end in ends)
    for end in ends:
        assert (end.preempted_s > 0) == (end.restore_s > 0) == (end.num_preemptions > 0)
