"""The bench of the engine against its simulation: one specification, equal requests, its sums."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from bench import engine_fidelity
from bench.engine_fidelity import SETUPS, Try, capacity_per_s, simulated, units_of
from bench.fidelity.others import ProcessorTime
from bench.fidelity.rows import claims_of, row_of, samples_of, side_of, simulated_jobs
from bench.fidelity.served import Client, Served
from bench.fidelity.setups import (
    MAX_LEN,
    Case,
    Setup,
    arrivals,
    case_of,
    popularity,
    write_config,
    write_models,
)
from bench.fidelity.speed import MachineSpeed
from muxcluster.core.events import Finished, FinishReason, TokenDelta
from muxcluster.core.request import Request, ServiceClass
from muxcluster.core.served import JobRecord, UnitStats
from muxcluster.core.unitspec import UnitSpec
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
    measured = side_of(records((2.0, 2.3, 4.0), (0.0, 0.1, 1.0)), [job("mixed", 3, 0.02)])
    expected = side_of(records((0.0, 0.2, 2.0), (2.0, 2.6, 5.0)), [job("mixed", 4, 0.03)])
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


def test_requests_before_a_case_do_not_count() -> None:
    case = case_of(TWO, capacity_per_s=50.0, load=0.5, count=40, seed=2)
    ids = [each.request_id for each in case.asked]
    assert len(set(ids)) == len(ids)
    times_s = [each.time_s for each in case.asked]
    assert times_s == sorted(times_s)
    counted = [each for each in case.asked if each.time_s >= case.begin_s]
    assert len(counted) == 40
    assert counted == case.asked[-40:]
    last_s = arrivals(TWO, 25.0, 40, 2)[-1].time_s
    assert counted[-1].time_s - case.begin_s == pytest.approx(last_s)
    early, late = (0.0, 0.5, 9.0), (4.0, 4.1, 6.0)
    jobs = [job("mixed", 3, 0.02), replace(job("mixed", 7, 0.04), start_s=3.0, end_s=3.04)]
    side = side_of(records(early, late), jobs, begin_s=2.0)
    assert side.figures["requests_per_s"] == pytest.approx(1 / 4)
    assert side.jobs["mixed"].rows == 7


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
    below, above = (
        simulated(unit, Case(arrivals(TWO, load * capacity, 200, seed=0), 0.0))
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
    served = client.run(unit, asked, vocabulary=100, seed=0)
    assert [len(each.prompt_tokens) for each in unit.requests] == [a.prompt_tokens for a in asked]
    assert all(each.sampling.ignore_eos for each in unit.requests)
    rows = served.records.rows
    assert rows["arrival_s"].tolist() == [a.time_s for a in asked]
    assert rows["output_tokens"].tolist() == [a.output_tokens for a in asked]
    assert (rows["first_token_s"] >= rows["arrival_s"]).all()
    assert len(served.jobs) == 1


def test_an_answer_that_is_short_stops_the_run() -> None:
    client = Client()
    with pytest.raises(RuntimeError, match="ended after"):
        client.run(FakeUnit(client, missing=1), arrivals(TWO, 500.0, 3, seed=1), 100, seed=0)


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
    assert ours_s >= 0.5
    # its parent is gone at once, so it belongs to nobody here
    ours_s, others_s = spin_s("sh", "-c", '"$@" & exit', "sh")
    assert ours_s < 0.25
    assert others_s >= 0.4


def test_drift_is_that_of_whichever_work_changed_more() -> None:
    fast, slow = MachineSpeed(0.010, 0.100), MachineSpeed(0.011, 0.150)
    assert slow.drift_from(fast) == fast.drift_from(slow) == pytest.approx(0.5)
    assert fast.drift_from(fast) == 0
    measured = MachineSpeed.now()
    assert measured.streamed_s > 0
    assert measured.products_s > 0


def test_a_disturbed_case_is_served_again_and_the_least_disturbed_try_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    others = iter([0.2, 0.1, 0.3, 0.01, 0.01, 0.01, 0.01])
    # before each case and after each of its tries, over that beside the profile
    speeds = iter([1.0, 1.0, 1.0, 1.0, 1.0, 1.05, 1.0, 0.8, 1.05, 1.0])
    usual = MachineSpeed(0.01, 0.1)

    class Clock:
        @staticmethod
        def now() -> MachineSpeed:
            return replace(usual, products_s=usual.products_s * next(speeds))

    def serve(*_: object) -> Served:
        return Served(records(), (), 0.0, others=next(others))

    monkeypatch.setattr(engine_fidelity, "serve", serve)
    monkeypatch.setattr(engine_fidelity, "MachineSpeed", Clock)

    def tries() -> list[Try]:
        return engine_fidelity.tries_of(cast(UnitSpec, None), (), 0, usual)

    first = tries()
    assert [each.served.others for each in first] == [0.2, 0.1, 0.3]
    assert min(first, key=lambda each: each.disturbance) is first[1]
    (quiet,) = tries()
    assert quiet.served.others == 0.01
    assert quiet.drift == pytest.approx(0.05)
    # served again because the machine was a quarter faster after it
    drifted = tries()
    assert [each.drift for each in drifted] == pytest.approx([0.25, 0.25, 0.05])
