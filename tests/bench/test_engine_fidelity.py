"""The bench of the engine against its simulation: one specification, equal requests, its sums."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from bench.engine_fidelity import SETUPS, Profiled, capacity_per_s, simulated, tries_of, units_of
from bench.fidelity.others import ProcessorTime
from bench.fidelity.rows import (
    Part,
    claims_of,
    parts_of,
    row_of,
    samples_of,
    side_of,
    simulated_jobs,
)
from bench.fidelity.served import Client, Served, Session
from bench.fidelity.setups import (
    MAX_LEN,
    Case,
    Setup,
    arrivals,
    case_of,
    in_a_row,
    popularity,
    write_config,
    write_models,
)
from bench.fidelity.speed import MachineSpeed, SpeedProbe
from muxcluster.core.events import Finished, FinishReason, TokenDelta
from muxcluster.core.request import Request, ServiceClass
from muxcluster.core.served import JobRecord, UnitStats
from muxcluster.placement.cost import Cell, Profile, ProfiledModel
from muxcluster.sim.core.timeline import JobSpan
from muxcluster.workload.metrics.records import Record, RecordLog, Records

TWO = Setup(("even", "wide"), "adbs", "hybrid", sharing="always")
DECODE = Cell("decode", 1, 1.0, 4, 64, (0.005,))


def records(*times_s: tuple[float, float, float]) -> Records:
    """Requests by arrival, first and last token, each with five tokens."""
    log = RecordLog()
    for arrival_s, first_s, last_s in times_s:
        log.add(Record("m", arrival_s, first_s, last_s, 10, 5))
    return log.records()


def job(phase: str, rows: int, seconds: float) -> JobRecord:
    return JobRecord(0, "m", phase, 0, 1.0, 1.0, 1.0 + seconds, rows, 2 * rows)


def test_a_row_holds_simulated_over_measured() -> None:
    measured = side_of([Part(records((2.0, 2.3, 4.0), (0.0, 0.1, 1.0)), [job("mixed", 3, 0.02)])])
    expected = side_of([Part(records((0.0, 0.2, 2.0), (2.0, 2.6, 5.0)), [job("mixed", 4, 0.03)])])
    assert measured.ttft_s.tolist() == pytest.approx([0.1, 0.3])
    assert measured.figures["requests_per_s"] == pytest.approx(2 / 4)
    assert measured.figures["output_tokens_per_s"] == pytest.approx(10 / 4)
    assert measured.figures["interactive_ttft_p50_ms"] == measured.figures["ttft_p50_ms"] == 200
    assert "batch_ttft_p50_ms" not in measured.figures
    assert measured.figures["tpot_p50_ms"] == pytest.approx(1e3 * (0.9 / 4 + 1.7 / 4) / 2)
    row = row_of(measured, expected)
    assert row["errors"] == {"throughput": -0.2, "ttft_p50": 1.0, "ttft_p95": 1.0}
    assert row["measured_jobs"] == {"mixed": {"count": 1, "rows": 3.0, "tokens": 6.0, "ms": 20.0}}
    assert samples_of("c", measured, expected)["ttft_ms simulated c"] == [200.0, 600.0]


def test_claims_are_medians_of_sizes_of_errors() -> None:
    rows = [
        {"errors": {"throughput": value, "ttft_p50": 2 * value, "ttft_p95": 0.3}}
        for value in (-0.2, 0.01, 0.05)
    ]
    found = {claim.name: (claim.value, claim.baseline) for claim in claims_of(rows)}
    assert found == {
        "throughput_median_abs_error": (0.05, 0.10),
        "ttft_p50_median_abs_error": (0.1, 0.15),
        "ttft_p95_median_abs_error": (0.3, 0.25),
    }


def test_steps_in_one_entry_count_apart() -> None:
    span = JobSpan("u", "m", "decode", 1.0, 2.0, 2.6, 4, 12, num_steps=3, alone_s=0.6)
    jobs = simulated_jobs([span])
    assert [(each.num_rows, each.num_tokens) for each in jobs] == [(4, 4)] * 3
    assert [each.end_s - each.start_s for each in jobs] == pytest.approx([0.2] * 3)


def test_a_rate_only_scales_times() -> None:
    slow, fast = (arrivals(TWO, rate, 300, seed=3) for rate in (5.0, 20.0))
    assert [replace(each, time_s=0) for each in slow] == [replace(a, time_s=0) for a in fast]
    assert [a.time_s for a in slow] == pytest.approx([4 * a.time_s for a in fast])
    assert len({a.request_id for a in slow}) == 300
    assert max(a.prompt_tokens + a.output_tokens for a in slow) <= MAX_LEN
    share = np.mean([a.service_class is ServiceClass.BATCH for a in slow])
    assert 0.15 < share < 0.35
    popular = np.mean([a.model == "even" for a in slow])
    assert 0.55 < popular < 0.8
    assert popularity(TWO.models) == pytest.approx({"even": 2 / 3, "wide": 1 / 3})


def test_a_case_is_stretches_of_requests() -> None:
    case = case_of(TWO, capacity_per_s=50.0, load=0.5, count=240, seed=2)
    assert [len(stretch) for stretch in case.stretches] == [100] * 3
    asked, begins_s = in_a_row(case)
    ids = [each.request_id for each in asked]
    assert len(set(ids)) == len(ids) == len(case.warm_up) + 300
    times_s = [each.time_s for each in asked]
    assert times_s == sorted(times_s)
    for stretch, begin_s in zip(case.stretches, begins_s, strict=True):
        mine = [each for each in asked if each.request_id in {own.request_id for own in stretch}]
        assert [each.time_s - begin_s for each in mine] == pytest.approx(
            [each.time_s for each in stretch]
        )
    assert begins_s[0] > case.warm_up[-1].time_s


def test_stretches_are_taken_together_and_what_is_before_is_not() -> None:
    early, first, second = (0.0, 0.5, 1.0), (4.0, 4.1, 6.0), (9.0, 9.4, 10.0)
    jobs = [
        replace(job("mixed", 3, 0.02), start_s=start_s, end_s=start_s + 0.02)
        for start_s in (0.5, 4.0, 9.0)
    ]
    parts = parts_of(records(early, first, second), jobs, [3.0, 8.0])
    assert [len(part.records) for part in parts] == [1, 1]
    assert [part.jobs[0].start_s for part in parts] == pytest.approx([1.0, 1.0])
    both = side_of(parts)
    assert both.ttft_s.tolist() == pytest.approx([0.1, 0.4])
    assert both.figures["requests_per_s"] == pytest.approx(2 / (3.0 + 2.0))
    assert both.jobs["mixed"].count == 2


def test_cases_are_as_many_as_asked_for() -> None:
    assert {setup.lane for setup in SETUPS} == {"adbs", "mixed", "temporal"}
    assert {setup.packing for setup in SETUPS} == {"hybrid", "priority"}
    assert {1, 2, 3, 4} <= {len(setup.models) for setup in SETUPS}


def test_what_is_simulated_is_what_the_engine_gets(tmp_path: Path) -> None:
    write_models(tmp_path)
    spec, plain = units_of(write_config(tmp_path, TWO, 10.0, ()))
    assert plain.spec is spec
    assert (spec.scheduler.lane, spec.scheduler.packing) == ("adbs", "hybrid")
    assert not spec.scheduler.may_unshare
    assert [model.name for model in spec.models] == ["even", "wide"]
    assert sum(model.rate_per_s for model in spec.models) == pytest.approx(10.0)
    shape = plain.models["even"].shape
    measured = Profile("cpu", 4, "here", (ProfiledModel("even", shape, (DECODE,)),))
    file = tmp_path / "profile.json"
    file.write_text(measured.to_json())
    _, unit = units_of(write_config(tmp_path, TWO, 10.0, (file,)))
    assert unit.models["even"].cost.decode_s(shape, 1, 1.0, 4, 64) == pytest.approx(0.005)
    assert plain.models["even"].cost.decode_s(shape, 1, 1.0, 4, 64) != pytest.approx(0.005)


def test_capacity_is_what_the_simulator_can_serve(tmp_path: Path) -> None:
    write_models(tmp_path)
    _, unit = units_of(write_config(tmp_path, TWO, 10.0, ()))
    capacity = capacity_per_s(TWO, unit, seed=0)
    warm_up = arrivals(TWO, capacity, 1, seed=1)
    below, above = (
        side_of(simulated(unit, Case(warm_up, [arrivals(TWO, load * capacity, 200, seed=0)])))
        for load in (0.3, 3.0)
    )
    assert above.figures["requests_per_s"] == pytest.approx(capacity, rel=0.3)
    assert below.figures["ttft_p95_ms"] < above.figures["ttft_p50_ms"]


class FakeUnit:
    """Answers each request at once, some of them short."""

    def __init__(self, client: Client, missing: int = 0) -> None:
        self.requests: list[Request] = []
        self._client = client
        self._missing = missing

    def submit(self, request: Request) -> None:
        self.requests.append(request)
        tokens = tuple(range(request.sampling.max_tokens - self._missing))
        end = Finished(request.request_id, FinishReason.LENGTH)
        self._client.hear({request.request_id: TokenDelta(tokens[:1])})
        self._client.hear({request.request_id: TokenDelta(tokens[1:], finished=end)})

    def stats(self) -> UnitStats:
        return UnitStats("u", 0.0, 1, 1, jobs=(job("decode", 1, 0.1),))


def test_each_request_is_sent_when_due_with_its_lengths() -> None:
    client = Client()
    unit = FakeUnit(client)
    asked = arrivals(TWO, 500.0, 20, seed=1)
    served = client.run(unit, asked, 100, np.random.default_rng(0))
    assert [len(each.prompt_tokens) for each in unit.requests] == [a.prompt_tokens for a in asked]
    assert all(each.sampling.ignore_eos for each in unit.requests)
    rows = served.records.rows
    assert rows["arrival_s"].tolist() == [a.time_s for a in asked]
    assert rows["output_tokens"].tolist() == [a.output_tokens for a in asked]
    assert (rows["first_token_s"] >= rows["arrival_s"]).all()
    assert len(served.jobs) == 1


def test_a_stretch_that_is_served_again_has_other_prompts() -> None:
    """The unit would find the same ones in its prefix cache."""
    client, rng = Client(), np.random.default_rng(0)
    unit = FakeUnit(client)
    asked = arrivals(TWO, 500.0, 5, seed=1)
    for _ in range(2):
        client.run(unit, asked, 10_000, rng)
    first, again = unit.requests[:5], unit.requests[5:]
    for one, other in zip(first, again, strict=True):
        assert one.prompt_tokens.tolist() != other.prompt_tokens.tolist()


def test_an_answer_that_is_short_stops_the_run() -> None:
    client, asked = Client(), arrivals(TWO, 500.0, 3, seed=1)
    with pytest.raises(RuntimeError, match="ended after"):
        client.run(FakeUnit(client, missing=1), asked, 100, np.random.default_rng(0))


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="needs Linux's /proc")
def test_time_of_a_child_is_ours_and_time_of_a_stranger_is_not() -> None:
    def spin_s(*before_it: str) -> tuple[float, float]:
        """Return seconds that count as ours and as others' while a process spins for half one."""
        spin = "import time\nwhile time.process_time() < 0.5: pass"
        before = ProcessorTime.now()
        command = [*before_it, sys.executable, "-c", spin]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.read()  # until it has ended
            after = ProcessorTime.now()
        assert before is not None and after is not None
        others_s = after.others_since(before, 1.0) * (os.cpu_count() or 1)
        return after.ours_s - before.ours_s, others_s

    ours_s, _ = spin_s()
    assert ours_s >= 0.45  # of a process, Linux counts in ticks of 10 ms
    # its parent is gone at once, so it belongs to nobody here
    ours_s, others_s = spin_s("sh", "-c", '"$@" & exit', "sh")
    assert ours_s < 0.25
    assert others_s >= 0.4


def test_drift_is_that_of_whichever_work_changed_more() -> None:
    fast, slow = MachineSpeed(0.010, 0.100), MachineSpeed(0.011, 0.150)
    assert slow.drift_from(fast) == fast.drift_from(slow) == pytest.approx(0.5)
    assert fast.drift_from(fast) == 0
    assert slow.mean(fast) == MachineSpeed(pytest.approx(0.0105), pytest.approx(0.125))


@pytest.mark.slow
def test_fixed_work_is_timed_by_a_process_that_ends_with_its_parents_use() -> None:
    with SpeedProbe(1) as probe:
        measured = probe.now(is_quick=True)
        assert 0 < measured.decode_s < measured.prefill_s
        probe._process.kill()
        probe._process.wait()
        with pytest.raises(RuntimeError, match="has died"):
            probe.now()
    with SpeedProbe(1) as other:
        pass
    assert other._process.returncode == 0


def test_a_disturbed_stretch_is_served_again() -> None:
    usual = MachineSpeed(0.01, 0.1)
    slow = MachineSpeed(0.02, 0.2)
    others = iter([0.2, 0.01, 0.01, 0.01, 0.1, 0.1, 0.1])
    speeds = iter([slow, slow, usual, usual, usual, usual, usual])
    sent: list[float] = []

    class FakeSession:
        def serve(self, asked: object, slowness: float) -> Served:
            sent.append(slowness)
            found = records((0.0, 2.0, 4.0))
            return Served(found, [job("mixed", 3, 0.02)], 0.0, others=next(others))

    class FakeProbe:
        def now(self, *, is_quick: bool) -> MachineSpeed:
            return next(speeds)

    session = cast(Session, FakeSession())
    profiled = Profiled((), usual, cast(SpeedProbe, FakeProbe()))
    # others took too much at first
    tries, speed = tries_of(session, (), slow, profiled)
    assert [each.is_quiet for each in tries] == [False, True]
    assert speed is slow
    # on a machine half as fast, everything is sent and answered in half of the time
    assert sent == [2.0, 2.0]
    found = tries[-1].served
    assert found.records.rows["first_token_s"].tolist() == [1.0]
    assert found.jobs[0].end_s - found.jobs[0].start_s == pytest.approx(0.01)
    # the machine has become faster meanwhile
    tries, speed = tries_of(session, (), slow, profiled)
    assert [(each.is_quiet, each.drift) for each in tries] == [(False, 1.0), (True, 0.0)]
    # never quiet
    tries, _ = tries_of(session, (), usual, profiled)
    assert [each.is_quiet for each in tries] == [False] * 3
