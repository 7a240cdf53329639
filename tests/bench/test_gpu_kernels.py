"""bench/gpu/kernels.py in its smoke mode, and that it notices a kernel that is wrong."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from bench.gpu.kernel_cases.claims import claims
from bench.gpu.kernel_cases.speed.attention import DECODE, LLAMA3_8B, decode_case
from bench.gpu.kernel_cases.speed.prefix import prefix_case
from bench.gpu.running.ceilings import Ceilings
from bench.gpu.running.clock import Clock
from bench.gpu.running.run import Run, relative_error
from tests.conftest import ROOT

SCRIPT = ROOT / "bench" / "gpu" / "kernels.py"
KERNELS = {
    "kv_write",
    "paged_decode",
    "paged_prefill",
    "prompt_attention",
    "prefix_attention",
    "slot_copy",
    "add_rms_norm",
    "rotary",
    "silu_mul",
    "sample",
}


def bench(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = (sys.executable, str(SCRIPT), *arguments)
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=250)


@pytest.mark.slow
def test_every_kernel_is_checked_and_timed(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    done = bench("--device", "cpu", "--json", str(path), cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    record = json.loads(path.read_text())
    assert {check["kernel"] for check in record["checks"]} == KERNELS
    assert {row["kernel"] for row in record["rows"]} == KERNELS
    assert all(check["ok"] for check in record["checks"])
    assert all("us" in row for row in record["rows"])
    assert not record["failures"]
    # Nothing is said of speed.
    names = [claim["name"] for claim in record["claims"]]
    assert names == ["kernel_cases_correct", "kernel_cases_wrong"]


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(tmp_path: Path) -> None:
    done = bench(cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("no GPU: nothing was run")


@pytest.fixture
def run(tmp_path: Path) -> Run:
    cpu = torch.device("cpu")
    return Run(cpu, Clock(cpu, 3), Ceilings(1e9, 1e12), True, math.inf, tmp_path / "record.json")


def test_wrong_nan_and_failing_results_are_kept_as_wrong(run: Run) -> None:
    ones = torch.ones(4)
    run.check("a", "right", lambda: relative_error(ones, ones), 0.0)
    run.check("a", "off", lambda: relative_error(ones * 1.1, ones), 0.05)
    run.check("a", "nan", lambda: relative_error(ones * torch.nan, ones), 0.05)
    run.check("a", "fails", lambda: 1 / 0, 0.05)
    assert [check["ok"] for check in run.checks] == [True, False, False, False]
    assert "ZeroDivisionError" in run.checks[3]["failure"]
    assert json.loads(run.path.read_text())["checks"][0]["ok"]
    values = {claim.name: claim.value for claim in claims(run.checks, [])}
    assert values == {"kernel_cases_correct": 1, "kernel_cases_wrong": 3}


def test_a_failing_rival_costs_only_itself(run: Run) -> None:
    run.time("a", "case", lambda: torch.ones(9).sum(), moved=36, rivals={"none": lambda: 1 / 0})
    (row,) = run.rows
    assert row["share_of_copy"] == pytest.approx(36 / (row["us"] * 1e-6) / 1e9)
    assert "ZeroDivisionError" in row["rivals"]["none"]["failure"]
    assert len(run.samples["a case"]) == 3


def test_claims_are_read_off_the_rows() -> None:
    def prefix(length: int, faster: float) -> dict[str, object]:
        case = prefix_case(32, 0, length, 256)
        rivals = {"paged": {"times_faster": faster}}
        return {"kernel": "prefix_attention", "case": case, "us": 1.0, "rivals": rivals}

    decode = {"kernel": "paged_decode", "case": decode_case(*DECODE[0], LLAMA3_8B), "us": 1.0}
    rows = [decode | {"share_of_copy": 0.875}]
    rows += [prefix(*each) for each in ((128, 0.7), (256, 1.1), (512, 0.9))]
    rows += [prefix(*each) for each in ((1024, 1.2), (2048, 1.5))]
    found = {claim.name: (claim.value, claim.baseline) for claim in claims([], rows)}
    assert found["decode_share_of_copy"] == (0.875, 0.85)
    assert found["prefix_over_paged_32_at_2048_256"] == (1.5, 1.0)
    assert found["prefix_crossover_32"] == (1024, None)
    assert "prefix_crossover_256" not in found
