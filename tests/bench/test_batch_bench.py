"""Jobs and errors of `bench/batch.py`."""

import json

import pytest

from bench import batch
from bench.batch import WARM, WARM_COUNT, Measured, Ran, speed, write_jobs
from bench.batches.kills import Killed
from bench.batches.long_job import LongJob
from bench.batches.server import Served
from bench.batches.streams import Streams

ESTIMATES = [(20, 0.2, 300.0), (60, 0.5, 50.0), (80, 0.9, 15.0)]


def _ran(order: str, seconds: float, estimates: list[tuple[float, float, float]]) -> Ran:
    return Ran(order, {}, seconds, 1.0, 900, 450, 100, estimates)


def test_errors_are_of_the_second_half() -> None:
    ran = _ran("auto", 100.0, ESTIMATES)
    assert ran.error_at_half() == pytest.approx(0.25)
    assert ran.errors() == pytest.approx([0.1, 0.05])


def test_speed_is_the_median_of_an_order() -> None:
    runs = [_ran("auto", 10.0, []), _ran("fcfs", 20.0, []), _ran("auto", 5.0, [])]
    assert speed(runs, "auto") == pytest.approx(150.0)
    assert speed(runs, "fcfs") == pytest.approx(50.0)


def test_jobs_are_the_same_but_for_their_salt(tmp_path) -> None:
    warm, *jobs = write_jobs(tmp_path, 80, [WARM, "a", "b"], seed=0)
    assert len(warm.read_text().splitlines()) == min(WARM_COUNT, 80)
    contents = []
    for path in jobs:
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        assert {line["body"].pop("cache_salt") for line in lines} == {path.stem}
        assert len({line["custom_id"] for line in lines}) == 80
        contents.append(lines)
    assert contents[0] == contents[1]
    prompts = [line["body"]["prompt"] for line in contents[0]]
    assert len({tuple(prompt[:40]) for prompt in prompts}) == 10
    assert len({tuple(prompt) for prompt in prompts}) == 80


def test_claims_are_those_of_the_runs(tmp_path, monkeypatch) -> None:
    """With an engine that is none."""
    ttfts_s = (0.1, 0.6, 0.2, 0.3)  # here alone and beside a job, then through HTTP
    made = [Streams(None, ("m",), 500, 0) for _ in ttfts_s]
    for streams, ttft_s in zip(made, ttfts_s, strict=True):
        streams.ttft_s, streams.tpot_s = [ttft_s] * 3, [0.05] * 3
    made[1].slo = made[0].targets()
    runs = [_ran(order, seconds, ESTIMATES) for order, seconds in (("fcfs", 200.0), ("auto", 80.0))]

    async def measure(*_: object) -> object:
        return Measured(
            runs,
            _ran("auto", 100.0, ESTIMATES),
            *made[:2],
            [_ran("auto", 100.0, ESTIMATES)],
            [Served(125.0, 900, 450, 100, all_ids)],
            *made[2:],
            [Served(125.0, 900, 450, 100, [*all_ids[2:], "r-7"])],
        )

    all_ids = [f"r-{i}" for i in range(batch.QUICK_COUNT)]
    ids = [f"r-{i}" for i in range(1, batch.QUICK_COUNT)] + ["r-5"]
    monkeypatch.setattr(batch, "measure", measure)
    monkeypatch.setattr(batch, "run_killed", lambda *_: Killed(2, ids))

    async def run_long_job(*_: object) -> LongJob:
        return LongJob(4000, 3.0, 2.0, 9.0, {"check": 0.01, "run": 0.04}, {})

    monkeypatch.setattr(batch, "run_long_job", run_long_job)
    monkeypatch.setattr(batch, "build_models", lambda folder: {})
    monkeypatch.setattr(batch, "load_config", lambda file: None)
    monkeypatch.setattr(batch, "keep_batches_in", lambda file, folder: None)
    record = tmp_path / "record.json"
    batch.main(["--quick", "--json", str(record)])
    found = json.loads(record.read_text())
    assert {claim["name"]: claim["value"] for claim in found["claims"]} == {
        "batch_tokens_per_s_over_fcfs": pytest.approx(2.5),
        "estimate_error_at_half": pytest.approx(0.25),
        "server_over_batch_run": pytest.approx(0.8),
        "results_lost": 3,
        "results_doubled": 2,
        "interactive_ttft_p99_over_alone": pytest.approx(1.5),
        "long_job_checked_s": 3.0,
        "long_job_first_token_s": 2.0,
        "event_loop_blocked_s": 0.04,
        "interactive_p99_ttft_s": 0.6,
        "interactive_p99_tpot_s": 0.05,
    }
    assert found["interactive"]["beside"]["met"] == {"ttft": 0.0, "tpot": 1.0}
    assert found["estimate_error_from_half"]["worst"] == pytest.approx(0.1)
