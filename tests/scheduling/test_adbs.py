"""What ADBS is for: prefill first, decodes beside it, no model starved by turns or quotas."""

from collections.abc import Callable, Mapping

import pytest

from muxcluster.core.job import Phase, WorkerSpec
from muxcluster.core.kvshape import KvShape
from muxcluster.core.request import Slo
from muxcluster.scheduling.steptime.line import Line
from tests.scheduling.rig import LADDER, Rig, model_spec, request, unit_spec

Lines = Mapping[str, Callable[[float], Line]]  # by model, its line at a share

THREE_WORKERS = tuple(WorkerSpec(i, LADDER) for i in range(3))


def two_models(**more):
    return unit_spec([model_spec("a"), model_spec("b")], **more)


def decoding(rig: Rig, *names: str) -> Rig:
    """Requests of these models have had their first token; nothing runs."""
    for name in names:
        rig.add(request(f"{name} decodes", name, num_output=40))
    while any(f"{name} decodes" not in rig.first_token_s for name in names):
        rig.step()
    while rig.running:
        rig.finish()
    return rig


def summary(jobs):
    return [(job.model, job.phase, job.share) for job in jobs]


def test_one_kind_of_work_takes_the_whole_gpu() -> None:
    rig = Rig(two_models())
    rig.add(request("r", "a"))
    assert summary(rig.launch()) == [("a", Phase.PREFILL, 1.0)]
    rig.finish()
    assert summary(rig.launch()) == [("a", Phase.DECODE, 1.0)]


def test_prefill_goes_first_and_decodes_of_any_model_run_beside_it() -> None:
    for model in "ba":
        rig = decoding(Rig(two_models()), "a")
        rig.add(request("new", model))
        prefill, decode = summary(rig.launch())
        assert prefill[:2] == (model, Phase.PREFILL)
        assert decode[:2] == ("a", Phase.DECODE)
        assert prefill[2] + decode[2] == 1.0


def test_at_most_one_prefill_runs() -> None:
    rig = Rig(two_models(workers=THREE_WORKERS))
    rig.add(request("r", "a"), request("s", "b"))
    assert summary(rig.launch()) == [("a", Phase.PREFILL, 1.0)]
    assert rig.launch() == []
    assert not rig.scheduler.has_waiting_work, "a prompt behind a prefill could use no SMs"


def three_decodes_run(rig: Rig) -> Rig:
    decoding(rig, "a", "b", "c")
    shares = {job.model: job.share for job in rig.launch()}
    assert shares == {"a": 0.5, "b": 0.25, "c": 0.25}
    return rig


def finish(rig: Rig, model: str) -> None:
    """The model's only job ends."""
    rig.finish(worker_id=next(job.worker_id for _, job in rig.running if job.model == model))


def three_models():
    """Nothing is known of what their jobs take."""
    models = [
        model_spec("a"),
        model_spec("b"),
        model_spec("c"),
        model_spec("d", max_seqs=1),
    ]
    return unit_spec(models, workers=THREE_WORKERS, num_blocks=128)


def test_a_decode_gets_its_part_of_the_sms_and_no_more_where_more_is_free() -> None:
    rig = three_decodes_run(Rig(three_models()))
    finish(rig, "b")
    finish(rig, "a")
    assert {job.model: job.share for job in rig.launch()} == {"a": 0.5, "b": 0.25}


def many_decode(num_blocks: int) -> Rig:
    """Three requests of the only model have had their first token; nothing runs."""
    rig = Rig(unit_spec([model_spec("a")], num_blocks=num_blocks, token_budget=32))
    rig.add(*(request(f"old {i}", "a", num_output=40) for i in range(3)))
    while len(rig.first_token_s) < 3:
        rig.step()
    while rig.running:
        rig.finish()
    return rig


def small(model: str, count: int):
    return [request(f"new {model}{i}", model, num_prompt=8) for i in range(count)]


def test_models_without_a_worker_get_no_part_of_the_sms() -> None:
    tenths = tuple(rung / 10 for rung in range(1, 11))
    models = [model_spec(name) for name in "abc"]
    for num_workers, wanted in ((1, [1.0]), (2, [0.5, 0.5]), (3, [0.3, 0.3, 0.4])):
        workers = tuple(WorkerSpec(worker_id, tenths) for worker_id in range(num_workers))
        rig = decoding(Rig(unit_spec(models, workers=workers)), "a", "b", "c")
        assert sorted(job.share for job in rig.launch()) == wanted


class Seconds:
    """A seed: seconds of decodes and of prefills, by model and share."""

    def __init__(self, decode: Lines, prefill: Lines | None = None) -> None:
        self._lines = {Phase.DECODE: decode, Phase.PREFILL: prefill or {}}

    def line(self, phase: Phase, model: str, share: float) -> Line | None:
        line = self._lines.get(phase, {}).get(model)
        return None if line is None else line(share)


def flat(share: float) -> Line:
    """A quarter of the SMs is nearly as good as all."""
    return Line(0.020 / share**0.1, 0.0001, 0.0)


def steep(share: float) -> Line:
    """Half of the SMs, nearly twice the time; most of it grows with the rows."""
    return Line(0.002 / share**0.8, 0.02 / share**0.8, 0.0)


def test_decodes_that_gain_more_from_sms_get_more_of_them() -> None:
    seed = Seconds({"a": steep, "b": flat})
    rig = decoding(Rig(two_models(workers=THREE_WORKERS), times=seed), "a", "b")
    assert {job.model: job.share for job in rig.launch()} == {"a": 0.75, "b": 0.25}
    seed = Seconds({"a": flat, "b": steep})
    rig = decoding(Rig(two_models(workers=THREE_WORKERS), times=seed), "a", "b")
    assert {job.model: job.share for job in rig.launch()} == {"a": 0.25, "b": 0.75}


def test_two_equal_models_beside_a_prefill_leave_nothing_idle() -> None:
    """On a GPU's rungs: a prefill of 0.5 leaves one of them no rung, so it takes 0.3, or they take
    turns on all that it leaves."""
    workers = (
        WorkerSpec(0, (0.3, 0.5, 1.0), frozenset({Phase.PREFILL, Phase.MIXED})),
        *(WorkerSpec(i, (0.3, 0.5, 0.7, 1.0), frozenset({Phase.DECODE})) for i in (1, 2)),
    )
    models = [model_spec(name) for name in "abc"]
    for curve in (flat, steep):
        seed = Seconds(dict.fromkeys("abc", curve), dict.fromkeys("abc", steep))
        rig = decoding(Rig(unit_spec(models, workers=workers), times=seed), "a", "b")
        rig.add(request("new", "c"))
        shares = sorted(job.share for job in rig.launch())
        assert shares in ([0.3, 0.3, 0.3], [0.5, 0.5], [0.3, 0.7]), shares
        assert sum(shares) == pytest.approx(1.0, abs=0.1 + 1e-9)


def test_prefills_leave_more_to_decodes_that_hold_the_memory() -> None:
    """However many prompts wait: with little held, each of them waits for its prefill alone."""
    for num_blocks, share in ((40, 0.25), (128, 0.75)):
        for num_new in (1, 4):
            rig = many_decode(num_blocks)
            rig.add(*small("a", num_new))
            prefill, decode = summary(rig.launch())
            assert prefill == ("a", Phase.PREFILL, share)
            assert decode == ("a", Phase.DECODE, 1.0 - share)


def test_prefills_of_one_model_get_most_sms_while_prompts_pile_up() -> None:
    rig = decoding(Rig(unit_spec([model_spec("a")], token_budget=32)), "a")
    rig.add(*small("a", 4))
    assert rig.launch()[0].share == 0.75


def test_memory_that_only_caches_holds_nobody_back() -> None:
    rig = Rig(two_models(num_blocks=112))
    rig.add(*(request(f"gone {i}", "a", num_prompt=33, num_output=1) for i in range(3)))
    rig.run()
    decoding(rig, "a")
    assert rig.scheduler.stats(rig.now, "unit").models[0].cached_blocks > 112 / 3
    rig.add(request("new", "b"))
    assert summary(rig.launch())[0] == ("b", Phase.PREFILL, 0.75)


def test_decodes_divide_what_a_prefill_leaves() -> None:
    rig = decoding(Rig(three_models()), "a", "b")
    rig.add(request("new", "c"))
    prefill, *decodes = summary(rig.launch())
    assert prefill == ("c", Phase.PREFILL, 0.5)
    assert sorted(decodes) == [("a", Phase.DECODE, 0.25), ("b", Phase.DECODE, 0.25)]


def test_a_prefill_that_waits_for_sms_holds_back_decodes() -> None:
    rig = three_decodes_run(Rig(three_models()))
    rig.add(request("new", "d"))
    finish(rig, "b")
    assert rig.launch() == [], "a quarter is free, but the prefill waits for a half"
    assert rig.scheduler.has_waiting_work
    finish(rig, "a")
    assert summary(rig.launch())[0] == ("d", Phase.PREFILL, 0.5)


def test_a_prefill_that_waits_for_memory_holds_back_nothing() -> None:
    rig = three_decodes_run(Rig(three_models()))
    rig.add(request("new", "a", num_prompt=50))
    finish(rig, "a")
    assert [job.phase for job in rig.launch()] == [Phase.DECODE]


def test_a_prefill_that_waits_for_memory_lets_the_next_model_in() -> None:
    rig = decoding(Rig(two_models(num_blocks=80)), "a")
    rig.add(request("too long for now", "a", num_prompt=40, num_output=20))
    rig.add(request("fits", "b"))
    assert summary(rig.launch())[0][:2] == ("b", Phase.PREFILL)


def test_least_slack_goes_first() -> None:
    rig = Rig(two_models())
    rig.add(request("relaxed", "a", slo=Slo(ttft_s=9.0, tpot_s=1.0)))
    rig.add(request("urgent", "b", slo=Slo(ttft_s=1.0, tpot_s=1.0)))
    assert summary(rig.launch())[0][0] == "b"


def test_a_missed_target_binds_nobody() -> None:
    rig = Rig(two_models())
    rig.add(request("late", "a", slo=Slo(ttft_s=1.0, tpot_s=1.0)))
    rig.now += 5.0
    rig.add(request("in time", "b", slo=Slo(ttft_s=2.0, tpot_s=1.0)))
    assert summary(rig.launch())[0][0] == "b"


def popular_and_rare(lane: str) -> Rig:
    """Model a has urgent work all the time, b one request without a target."""
    slo = Slo(ttft_s=1e6, tpot_s=1e6)
    models = [model_spec("a", max_seqs=150), model_spec("b")]
    rig = Rig(unit_spec(models, lane=lane, num_blocks=8000), checks=False)
    rig.add(*(request(f"a{i}", "a", num_output=20, slo=slo) for i in range(150)))
    rig.add(request("rare", "b", num_output=20))
    return rig.run()


def test_an_unpopular_model_is_not_starved() -> None:
    """FCFS makes it wait for the whole backlog, ADBS for its turn."""
    waits = {}
    for lane in ("adbs", "temporal"):
        rig = popular_and_rare(lane)
        waits[lane] = rig.first_token_s["rare"] - 100.0
    assert waits["adbs"] < 0.2 * waits["temporal"]


def big_beside_small(lane: str) -> Rig:
    """A large model at rate 1 beside a small one at rate 8, both overloaded (65B beside 30B)."""
    big = KvShape(num_layers=8, num_kv_heads=4, head_dim=128, itemsize=2)
    models = [
        model_spec("small", max_seqs=200, rate_per_s=8.0),
        model_spec("big", shape=big, max_seqs=50, rate_per_s=1.0),
    ]
    spec = unit_spec(models, lane=lane, num_blocks=800, quota_period_s=2.0, token_budget=256)
    rig = Rig(spec, checks=False)
    for second in range(40):
        rig.add(
            *(request(f"s{second}.{i}", "small", 30, 30) for i in range(8)),
            request(f"b{second}", "big", 30, 30),
        )
        rig.run_until(100.0 + second)
    return rig


@pytest.mark.slow
def test_quotas_do_not_starve_a_large_model() -> None:
    """MuxServe's public code starves it; ours gives it blocks by measured demand, never below its
    floor. Without quotas the small model's arrivals take the pool before a big column fits."""
    ended = {}
    for lane in ("adbs", "round-robin"):
        rig = big_beside_small(lane)
        ended[lane] = [sum(name.startswith(letter) for name in rig.ends) for letter in "bs"]
        if lane == "adbs":
            assert rig.quotas()["big"] >= 8 * 32
            big, small = ended[lane]
            assert big * 8 >= 0.8 * small, "far from its share of the load"
    assert all(ours > theirs for ours, theirs in zip(*ended.values(), strict=True))


def test_quotas_follow_the_load() -> None:
    """The plan was wrong about both models: after some periods quotas say what is measured."""
    models = [
        model_spec("a", max_seqs=40, rate_per_s=9.0),
        model_spec("b", max_seqs=40, rate_per_s=1.0),
    ]
    rig = Rig(unit_spec(models, num_blocks=640, quota_period_s=1.0, token_budget=256))
    assert rig.quotas() == {"a": 576, "b": 64}
    for second in range(12):
        rig.add(*(request(f"b{second}.{i}", "b", 30, 30) for i in range(9)))
        rig.add(request(f"a{second}", "a", 30, 30))
        rig.run_until(100.0 + second)
    assert rig.quotas()["b"] > 3 * rig.quotas()["a"]
    rig.run()
    rig.check_empty()
