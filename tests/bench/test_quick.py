"""Every script of bench/ that publishes a record runs with `--quick`, found by looking."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.harness import CANNOT_RUN
from tests.conftest import ROOT


def is_script(path: Path) -> bool:
    text = path.read_text(encoding="utf-8")
    return "Bench(" in text and 'if __name__ == "__main__"' in text


LONG = {"bench/gpu/lease.py", "bench/gpu/rehearse.py"}
"""They run others, for minutes: see test_gpu_lease.py."""
SCRIPTS = sorted(
    {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "bench").rglob("*.py")
        if is_script(path)
    }
    - LONG
)
WITHOUT_GPU = {"--dry": ("--dry",), "--device": ("--device", "cpu")}
"""What a script is run with that has such an option, so that it needs no GPU."""


def run(script: str, *arguments: str, data: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = os.environ if data is None else {**os.environ, "MUXCLUSTER_DATA": str(data)}
    command = (sys.executable, str(ROOT / script), "--quick", *arguments)
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=850
    )


def reason(done: subprocess.CompletedProcess[str]) -> str | None:
    """Why the script says that it cannot run here; None where it says nothing of the kind."""
    lines = done.stderr.strip().splitlines()
    if done.returncode == 1 and lines and lines[-1].startswith((CANNOT_RUN, "no GPU: ")):
        return lines[-1]
    return None


def test_scripts_are_found() -> None:
    assert {"bench/serving.py", "bench/gpu/kernels.py", "bench/offline/engine.py"} <= set(SCRIPTS)


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS)
def test_a_quick_run_publishes(script: str, tmp_path: Path) -> None:
    text = (ROOT / script).read_text(encoding="utf-8")
    options = [each for name, each in WITHOUT_GPU.items() if f'"{name}"' in text]
    path = tmp_path / "record.json"
    done = run(script, *(word for each in options for word in each), "--json", str(path))
    if (absent := reason(done)) is not None:
        pytest.skip(absent)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    record = json.loads(path.read_text(encoding="utf-8"))
    assert record["quick"]
    assert record["claims"] or options, "a bench without a claim"
    for claim in record["claims"]:
        assert set(claim) == {"name", "value", "unit", "baseline"}
        assert math.isfinite(claim["value"]), claim


def test_a_missing_data_folder_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "none"
    done = run("bench/muxserve/fidelity.py", data=folder)
    assert str(folder) in (reason(done) or "")
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.slow
def test_a_python_without_openvino_is_named() -> None:
    done = run("bench/serving.py", "--openvino", sys.executable)
    assert "openvino-genai" in (reason(done) or done.stderr)
    assert "Traceback" not in done.stderr
