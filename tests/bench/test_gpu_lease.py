"""bench/gpu/lease.sh without a GPU: its calls, what they leave behind, and what travels."""

import json
import os
import re
import signal
import subprocess
import sys
from importlib.metadata import packages_distributions, requires
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest
import torch

from bench.gpu import engine, facts, kernels, lease, multiplex, partitions, travel
from bench.gpu.lease import CALL_S, CALLS
from bench.gpu.multiplexing.systems import SYSTEMS
from tests.conftest import ROOT

SCRIPT = ROOT / "bench" / "gpu" / "lease.sh"


def environment(out: Path, **others: str) -> dict[str, str]:
    return {**os.environ, "OUT": str(out), "PYTHON": sys.executable, **others}


def started(out: Path, *arguments: str, **others: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        ("bash", str(SCRIPT), *arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment(out, **others),
    )


def record_in(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def test_every_part_is_in_a_call() -> None:
    asked = {(step.bench, part) for call in CALLS.values() for step in call for part in step.parts}
    whole = {step.bench for call in CALLS.values() for step in call if not step.parts}
    assert {part for bench, part in asked if bench == "facts"} == set(facts.LIMITS_S)
    assert {part for bench, part in asked if bench == "kernels"} == {"correct", "speed"}
    assert whole == {"partitions", "engine", "multiplex"}
    assert set(lease.DRY_FACTS) == set(facts.DRY)
    assert (ROOT / "bench" / "gpu" / "kernels.py").exists()
    assert kernels.PARTS.keys() >= {"correct.sample", "speed.decode"}


def test_correctness_comes_first_and_leaves_time_for_speed() -> None:
    """Steps may take all their time: those that must be right leave a minute for speed."""
    right = {"A": 3, "B": 2, "C": 0}
    for call, steps in CALLS.items():
        assert sum(step.seconds for step in steps[: right[call]]) <= CALL_S - 60
        assert all(step.seconds <= CALL_S for step in steps)
    assert CALLS["A"][1].parts == ("correct",)
    assert CALLS["B"][0].parts == ("equal", "equal.stock")
    assert max(partitions.LIMITS_S.values()) <= 220
    # A partition of processes or green contexts may need three minutes to start.
    assert multiplex.SHARING_S >= 180
    assert {system.partition for system in SYSTEMS} - multiplex.SYSTEM_S.keys()
    assert next(iter(engine.PARTS_S)) == "equal"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_a_call_says_so(tmp_path: Path) -> None:
    process = started(tmp_path / "out", "A")
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "no GPU: nothing was run" in output
    assert not (tmp_path / "out").exists()


def test_it_says_how_to_be_called(tmp_path: Path) -> None:
    process = started(tmp_path, "D")
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "lease.sh A|B|C [--dry]" in output


def wait_for_parts(path: Path, process: subprocess.Popen[str]) -> None:
    deadline = monotonic() + 300
    while not path.exists() or not record_in(path)["parts"]:
        assert monotonic() < deadline
        assert process.poll() is None, process.communicate()[0]
        sleep(0.02)


@pytest.mark.slow
def test_a_call_that_is_killed_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    returned = tmp_path / "returned"
    process = started(returned, "A", "--dry")
    wait_for_parts(returned / "facts.json", process)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    killed = record_in(returned / "facts.json")
    assert killed["parts"]["versions"]["verdict"] == "ok"
    assert not killed["finished"]

    steps = (lease.Step("facts", 300.0, ("versions", "ceilings", "graph")),)
    monkeypatch.setattr(lease, "CALLS", {"A": steps})
    again = tmp_path / "again"
    options = ["A", "--dry", "--out", str(again), "--from", str(returned)]
    assert lease.main(options) == 0
    said = capsys.readouterr().out
    assert "goes on from" in said
    assert "done in an earlier run: versions" in said
    assert "part ceilings: ok" in said
    assert "== call A: 2 of 2 parts ok" in said
    assert "facts: ipc" in said.partition("not measured yet")[2]
    record = record_in(again / "facts.json")
    assert [part["run"] for part in record["parts"].values()] == [0, 1]
    own = record_in(again / "lease_A.json")
    assert own["steps"][0]["ended"] == "exit code 0"
    assert own["samples"].keys() == {"facts ceilings"}
    assert not own["finished"]
    assert {"command", "commit", "machine", "versions"} <= own.keys()
    assert len(list(again.iterdir())) <= lease.FILES


def test_a_step_that_hangs_is_ended_and_the_rest_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "facts.py").write_text(
        "import time\nprint('part a: ok', flush=True)\ntime.sleep(60)"
    )
    (tmp_path / "kernels.py").write_text("raise SystemExit('cannot')")
    monkeypatch.setattr(lease, "HERE", tmp_path)
    monkeypatch.setattr(lease, "_GRACE_S", -24.0)
    steps = (lease.Step("facts", 26.0), lease.Step("kernels", 26.0))
    monkeypatch.setattr(lease, "CALLS", {"A": steps})
    out = tmp_path / "out"
    # Nothing was measured.
    assert lease.main(["A", "--dry", "--out", str(out)]) == 1
    assert "part a: ok" in capsys.readouterr().out
    ended = [step["ended"] for step in record_in(out / "lease_A.json")["steps"]]
    assert ended[0] == "ended after 2 s"
    assert ended[1].startswith(("exit code 1", "ended after 2 s"))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_call_a_runs_dry_within_its_time(tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = started(out, "A", "--dry", "--quick")
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, output
    call = record_in(out / "lease_A.json")
    assert call["wall_s"] < lease.CALL_LIMIT_S + 60
    assert call["finished"], output
    assert record_in(out / "facts.json")["finished"]
    found = record_in(out / "kernels.json")
    assert found["finished"]
    assert all(check["ok"] for check in found["checks"])
    files = [path for path in out.rglob("*") if path.is_file()]
    assert len(files) <= lease.FILES
    assert all(path.stat().st_size <= lease.FILE_BYTES for path in files)


@pytest.mark.parametrize(
    ("name", "fits"),
    [
        ("msgspec-0.22.0-cp312-cp312-manylinux2014_x86_64.manylinux_2_17_x86_64.whl", True),
        ("msgspec-0.22.0-cp311-cp311-manylinux_2_17_x86_64.whl", False),
        ("msgspec-0.22.0-cp313-cp313-manylinux_2_17_x86_64.whl", False),
        ("msgspec-0.22.0-cp312-cp312t-manylinux_2_17_x86_64.whl", False),
        ("msgspec-0.22.0-cp312-cp312-macosx_11_0_arm64.whl", False),
        ("msgspec-0.22.0-cp312-cp312-manylinux_2_17_aarch64.whl", False),
        ("msgspec-0.22.0-cp312-cp312-musllinux_1_2_x86_64.whl", False),
        ("new-1-cp312-cp312-manylinux_2_41_x86_64.whl", False),
        ("stable-1-cp39-abi3-manylinux_2_28_x86_64.whl", True),
        ("stable-1-cp313-abi3-manylinux_2_28_x86_64.whl", False),
        ("pure-1.0-py3-none-any.whl", True),
        ("old-1.0-py2.py3-none-any.whl", True),
        ("older-1.0-py2-none-any.whl", False),
        ("built-1.0-1-py3-none-any.whl", True),
        ("source-1.0.tar.gz", False),
    ],
)
def test_wheels_are_for_that_machine(name: str, fits: bool) -> None:
    assert (travel.fault_of(name) is None) == fits


def test_a_folder_of_wheels_holds_what_is_needed_once(tmp_path: Path) -> None:
    assert travel.faults_in(tmp_path) == ["msgspec: no wheel"]
    for number in (21, 22):
        (tmp_path / f"msgspec-0.{number}.0-cp312-cp312-manylinux_2_17_x86_64.whl").touch()
    assert travel.faults_in(tmp_path) == ["msgspec: two versions, of which pip installs none"]


def test_the_tree_is_small_enough_to_travel(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert travel.check_size()
    monkeypatch.setattr(travel, "LIMIT_BYTES", 1 << 20)
    assert not travel.check_size()
    assert "bench/results/" in capsys.readouterr().out


THERE = {
    *("numpy", "scipy", "pyyaml", "typer", "rich", "torch", "transformers", "safetensors"),
    *("tokenizers", "jinja2", "prometheus-client", "triton", "matplotlib", "httpx"),
}
"""Of what pyproject.toml asks for, what the lent machine has."""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_engine_and_kernels_run_on_what_the_machine_has(tmp_path: Path) -> None:
    asked = {re.split(r"[^\w-]", each)[0].lower() for each in requires("muxcluster") or ()}
    absent = {
        module
        for module, owners in packages_distributions().items()
        if module.isidentifier()
        and {owner.lower() for owner in owners} & (asked - THERE - {"muxcluster"})
    }
    assert absent >= {"msgspec", "pydantic", "ray", "zmq", "fastapi"}
    block = f"import sys\nfor name in {sorted(absent)!r}:\n    sys.modules[name] = None\n"
    (tmp_path / "sitecustomize.py").write_text(block, encoding="utf-8")
    parts = "kernel_cases.part engine_parts.part partition_runs.part multiplexing.part"
    others = "fact_checks.fact multiplexing.predict merge lease"
    code = f"import {', '.join(f'bench.gpu.{name}' for name in f'{parts} {others}'.split())}"
    paths = os.pathsep.join((str(tmp_path), str(ROOT)))
    done = subprocess.run(
        (sys.executable, "-c", code),
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
