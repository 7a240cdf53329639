"""Interactive sequences lend to more senior ones where no batch work is here to lend."""

import random
from dataclasses import replace

import pytest

from muxcluster.core.request import ServiceClass, Slo
from muxcluster.scheduling.memory.lending import SequenceRestoring
from tests.amounts import examples, slow
from tests.scheduling.rig import Rig, request, unit_spec
from tests.scheduling.test_hybrid import copied, rig_of
from tests.scheduling.test_random_runs import WORKERS, check_ends, random_request, run_to_the_end

LANES_OF_ONE_WORKER = ["mixed", "temporal", "adbs"]


def overload(lane: str, *, killed: str = "", **more) -> tuple[Rig, list, set[str]]:
    """Interactive requests alone outgrow the pool; run to the end."""
    rig = rig_of(lane=lane, num_blocks=72, max_seqs=16, **more)
    asked = [request(f"u{i}", num_output=30, slo=Slo(0.3, 0.2 + 0.01 * i)) for i in range(16)]
    hit = rig.run_failing(killed, {3 * i // 2: asked[i : i + 2] for i in range(0, 16, 2)})
    return rig, asked, hit


@pytest.mark.parametrize("lane", LANES_OF_ONE_WORKER)
def test_an_overload_recomputes_nothing_while_host_memory_lasts(lane: str) -> None:
    rig, asked, _ = overload(lane)
    rig.check_outputs(asked)
    saved, restored = copied(rig.jobs)
    assert saved >= restored > 50
    model = rig.scheduler.stats(rig.now, "unit").models[0]
    assert model.num_recomputed_tokens == model.num_preemptions == 0
    assert model.num_lent_columns > 0
    rig.check_empty()


@pytest.mark.parametrize("num_host_blocks", [4, 12])
def test_with_little_host_memory_some_are_recomputed_and_all_end(num_host_blocks: int) -> None:
    rig, asked, _ = overload("mixed", num_host_blocks=num_host_blocks)
    rig.check_outputs(asked)
    assert rig.scheduler.stats(rig.now, "unit").models[0].num_recomputed_tokens > 0
    rig.check_empty()


@pytest.mark.parametrize("killed", ["saves", "restores"])
@pytest.mark.parametrize("lane", LANES_OF_ONE_WORKER)
def test_a_worker_killed_while_it_copies_loses_nothing(lane: str, killed: str) -> None:
    rig, asked, hit = overload(lane, killed=killed)
    assert len(hit) >= 2
    rig.check_outputs(asked)
    model = rig.scheduler.stats(rig.now, "unit").models[0]
    assert model.num_preemptions == 0
    if killed == "saves":
        assert model.num_recomputed_tokens > 0
    rig.check_empty()


@pytest.mark.parametrize("patient", ["second", "third"])
def test_those_with_the_most_slack_lend(patient: str) -> None:
    """The first one needs a column when the pool is full and the others are in the middle."""
    rig = rig_of(num_blocks=36, max_seqs=8)
    asked = [request("first", num_prompt=15, num_output=40, slo=Slo(0.3, 0.1))]
    for name in ("second", "third"):
        slo = Slo(0.3, 9.0 if name == patient else 0.2)
        asked.append(request(name, num_prompt=9, num_output=30, slo=slo))
    rig.add(*asked)
    table = rig.scheduler._models["a"].running
    while not table.num_lent:
        rig.step()
    assert table.request_ids[table.idle_lent()].tolist() == [patient]
    rig.run()
    rig.check_outputs(asked)


def test_a_lent_sequence_is_restored_before_others_are_let_in() -> None:
    rig = rig_of(num_blocks=48, max_seqs=8)
    asked = [request(f"u{i}", num_output=30, slo=Slo(0.3, 0.2)) for i in range(3)]
    rig.add(*asked)
    table = rig.scheduler._models["a"].running
    while not table.num_lent:
        rig.step()
    late = [request(f"late {i}", num_output=8, slo=Slo(0.3, 0.2)) for i in range(3)]
    rig.add(*late)
    while table.num_lent:
        assert not any(f"late {i}" in rig.first_token_s for i in range(3))
        rig.step()
    rig.run()
    rig.check_outputs(asked + late)


def test_quotas_take_back_no_sequence_that_has_lent_all_it_had() -> None:
    """Its end would give the quota nothing, and its tokens would be computed again."""
    rig = rig_of(lane="adbs", num_blocks=72, max_seqs=16)
    rig.add(*(request(f"u{i}", num_output=30, slo=Slo(0.3, 0.2 + 0.01 * i)) for i in range(16)))
    model, memory = rig.scheduler._models["a"], rig.scheduler._memory
    table, seen = model.running, 0
    while rig.num_open:
        rig.step()
        idle = table.idle()
        has_blocks = model.kv.capacity[idle] > model.kv.num_lent[idle] * model.block_tokens
        if not len(idle) or has_blocks[table.seniority[idle].argmax()]:
            continue
        names, used = set(table.request_ids[idle[has_blocks]]), model.kv.used
        was_taken = memory.take_back([model], rig.now)
        (preempted,) = [event.request_id for event in memory.take_events()] or (None,)
        assert was_taken is (preempted is not None) is (len(names) > 0)
        if was_taken:
            assert preempted in names
            assert model.kv.used < used
            seen += 1
    assert seen > 0
    rig.check_empty()


def random_run(lane: str, seed: int, **policy) -> Rig:
    """Mostly interactive requests in a tiny pool with much host memory."""
    rng = random.Random(f"interactive {lane} {seed}")
    spec = unit_spec(
        lane=lane,
        packing="hybrid",
        num_blocks=rng.choice((60, 90, 121)),
        num_host_blocks=rng.choice((40, 400)),
        workers=rng.choice(WORKERS),
        token_budget=rng.choice((16, 64)),
        quota_period_s=rng.choice((0.2, 3.0)),
        saves_lazily=rng.random() < 0.7,
        **policy,
    )
    rig, part = Rig(spec, seed), rng.choice((0.0, 0.3))
    waiting = []
    for i in range(20):
        drawn = random_request(rng, f"{seed}-{i}")
        is_batch = rng.random() < part
        service = ServiceClass.BATCH if is_batch else ServiceClass.INTERACTIVE
        sampling = replace(drawn.sampling, max_tokens=30, ignore_eos=True, stop_token_ids=())
        waiting.append(replace(drawn, service_class=service, sampling=sampling))
    asked = run_to_the_end(rng, rig, waiting)
    check_ends(rig, asked)
    return rig


@pytest.mark.parametrize("lane", ["adbs", "mixed", *slow("temporal", "round-robin")])
def test_random_runs_end_and_lend(lane: str, monkeypatch: pytest.MonkeyPatch) -> None:
    returned: list[bool] = []
    restore = SequenceRestoring.restore_interactive

    def noted(self, model, row, job_id, **more):
        restored = restore(self, model, row, job_id, **more)
        returned.append(restored is not None)
        return restored

    monkeypatch.setattr(SequenceRestoring, "restore_interactive", noted)
    for seed in range(examples(2, 5)):
        random_run(lane, seed)
    assert sum(returned) > examples(0, 3)


def test_one_that_is_restored_over_the_blocks_of_another_lets_it_wait() -> None:
    """Both want to come back in one job, which would lose what the first one overwrites."""
    random_run("round-robin", 1007)
