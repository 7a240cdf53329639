"""The timeline holds every job once, loads as JSON, and tracks never overlap; usage adds up."""

import json
from collections import defaultdict
from pathlib import Path

import pytest

from muxcluster.sim.core.simulate import simulate
from muxcluster.sim.core.timeline import JobSpan, write_timeline
from tests.sim.cases import arrivals, sim_unit


def test_the_file_has_a_track_a_share_and_no_overlap(tmp_path: Path) -> None:
    spans: list[JobSpan] = []
    result = simulate([sim_unit()], arrivals(40, 10.0), on_job=spans.append)
    assert len(spans) == result.num_jobs
    write_timeline(spans, tmp_path / "t.json")
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    jobs = [event for event in events if event["ph"] == "X"]
    assert len(jobs) == len(spans)
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    by_track = defaultdict(list)
    for event in jobs:
        model, phase, rows = event["name"].split(":")
        assert model in "ab"
        assert phase in ("prefill", "decode")
        assert int(rows) >= 1
        by_track[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    assert by_track.keys() == names.keys()
    for times in by_track.values():
        for (_, end), (start, _) in zip(times, times[1:], strict=False):
            assert start >= end - 1e-3


def test_usage_is_the_jobs_share_over_time() -> None:
    spans: list[JobSpan] = []
    result = simulate([sim_unit()], arrivals(40, 10.0), on_job=spans.append, usage_bin_s=0.5)
    usage = result.usage["u"]
    end_s = len(usage.sm_share) * usage.bin_s
    busy = sum(s.share * (min(s.end_s, end_s) - min(s.start_s, end_s)) for s in spans)
    assert usage.sm_share.sum() * usage.bin_s == pytest.approx(busy)
    assert usage.sm_share.max() <= 1 + 1e-9
    assert 0 < sum(usage.kv_share.values()).max() <= 1


def test_neighbours_never_make_a_job_faster() -> None:
    spans: list[JobSpan] = []
    simulate([sim_unit()], arrivals(40, 10.0), on_job=spans.append)
    assert all(s.end_s - s.start_s >= s.alone_s - 1e-9 for s in spans)
    assert any(s.end_s - s.start_s > 1.02 * s.alone_s for s in spans)
