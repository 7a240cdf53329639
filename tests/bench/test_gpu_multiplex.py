"""bench/gpu/multiplex.py in its dry mode: what ran, what was skipped and why, what is predicted."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from bench.gpu.multiplex import claims
from bench.gpu.multiplexing.setup import cost_of, work_of
from bench.gpu.multiplexing.systems import DRY_SYSTEMS, SYSTEMS
from muxcluster.placement.cost import MeasuredCost, Profile
from tests.bench.gpu_scripts import ABSENT, record_of, run_bare
from tests.conftest import ROOT

pytestmark = pytest.mark.timeout(600)
"""Units are started six times, in seconds each on a machine that has nothing else to do."""

WITH_PROCESSES = tuple(name for name in ABSENT if name != "msgspec")
"""Worker processes talk in msgspec's words."""


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """The record of a dry run, and where it lies."""
    folder = tmp_path_factory.mktemp("multiplex")
    record = record_of("multiplex.py", "--dry", cwd=folder, absent=WITH_PROCESSES)
    return record, folder / "record.json"


@pytest.mark.slow
def test_every_system_runs_or_says_why_not(ran: tuple[dict[str, Any], Path]) -> None:
    record, _ = ran
    assert record["failures"] == {}
    first, *rows = record["rows"]
    assert first["case"] == "profile"
    assert [row["case"] for row in rows] == [system.name for system in DRY_SYSTEMS]
    by_name = {row["case"]: row for row in rows}
    assert "'green' is none of device 'cpu'" in by_name.pop("adbs-green")["skipped"]
    count = len(work_of(record["given"], tiny=True).arrivals())
    for row in by_name.values():
        assert row["requests"] == count > 0
        assert row["requests_per_s_by_model"].keys() == {"1b-0", "8b-1"}
        assert 0 <= row["slo_attainment"] <= 1
        assert row["predicted_requests_per_s"] > 0
        assert len(record["samples"][f"{row['case']} latency_s"]) == row["finished"]
    assert any(row["finished"] == count for row in by_name.values())
    # Nothing is said of speed.
    assert record["claims"] == []


@pytest.mark.slow
def test_the_profile_has_jobs_alone_and_side_by_side(ran: tuple[dict[str, Any], Path]) -> None:
    record, _ = ran
    row = record["rows"][0]
    assert row["partition"] == "threads"
    assert "'mps' is none of device 'cpu'" in row["refused"]["mps"]
    profile = Profile.from_json(row["profile"])
    assert [model.name for model in profile.models] == ["1b-0", "8b-1"]
    assert {cell.share for model in profile.models for cell in model.cells} == {0.5, 1.0}
    assert len(profile.pairs) == 4
    assert isinstance(cost_of(profile), MeasuredCost)


@pytest.mark.slow
def test_predictions_can_be_made_later(ran: tuple[dict[str, Any], Path], tmp_path: Path) -> None:
    record, path = ran
    again = tmp_path / "again.json"
    script = ROOT / "bench" / "gpu" / "multiplex.py"
    command = (sys.executable, str(script), "--predict", str(path), "--json", str(again))
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    then, now = ({row["case"]: row for row in each["rows"]} for each in (record, load(again)))
    assert then == now


def load(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


@pytest.mark.slow
def test_without_worker_processes_systems_that_need_them_are_skipped(tmp_path: Path) -> None:
    only = ("temporal", "adbs-threads")
    record = record_of("multiplex.py", "--dry", "--only", *only, cwd=tmp_path)
    profile, temporal, shared = record["rows"]
    assert profile["partition"] == "none"
    assert "msgspec" in profile["refused"]["threads"]
    assert Profile.from_json(profile["profile"]).pairs == ()
    assert temporal["requests"] > 0
    assert "msgspec" in shared["skipped"]


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(tmp_path: Path) -> None:
    done = run_bare("multiplex.py", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("no GPU: nothing was run")


def test_claims_are_of_what_was_measured() -> None:
    rows = [
        {"case": "profile"},
        {"case": "temporal", "requests_per_s": 2.0, "predicted_requests_per_s": 2.2},
        {"case": "adbs-mps", "requests_per_s": 3.0, "predicted_requests_per_s": 3.0},
        {"case": "adbs-green", "requests_per_s": 4.0},
        {"case": "static-mps", "requests_per_s": 2.5, "predicted_requests_per_s": 2.0},
        {"case": "adbs-auto", "skipped": "no"},
    ]
    values = {claim.name: claim.value for claim in claims(rows)}
    assert values == {
        "throughput_over_temporal": 2.0,
        "throughput_over_static": 1.6,
        "simulated_error_max": 0.2,
    }
    assert claims([rows[0], {"case": "temporal", "requests_per_s": 2.0}]) == []


def test_names_of_systems_are_one_thing_each() -> None:
    for systems in (SYSTEMS, DRY_SYSTEMS):
        names = [system.name for system in systems]
        assert len(set(names)) == len(names)
