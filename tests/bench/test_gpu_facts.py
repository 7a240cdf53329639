"""bench/gpu/facts.py without a GPU, its child processes, and its driver layers against fakes."""

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from bench.gpu.children import run_child
from bench.gpu.driver import Driver, DriverError
from bench.gpu.facts import LIMITS_S, markdown
from bench.gpu.facts_ipc import ipc
from bench.gpu.facts_mps import NoDaemon, _daemon
from tests.conftest import ROOT

SCRIPT = ROOT / "bench" / "gpu" / "facts.py"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_every_check_says_so(tmp_path: Path) -> None:
    command = (sys.executable, str(SCRIPT), "--json", "record.json", "--markdown", "FACTS.md")
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert done.stderr.strip().splitlines()[-1].startswith("no GPU")
    record = json.loads((tmp_path / "record.json").read_text())
    assert {name: fact["verdict"] for name, fact in record["facts"].items()} == dict.fromkeys(
        LIMITS_S, "no GPU"
    )
    assert record["claims"] == []
    assert not (tmp_path / "FACTS.md").exists()


def test_the_page_has_a_row_a_check() -> None:
    page = markdown({"mps": {"verdict": "no", "text": "a | b"}})
    assert page.splitlines()[-1] == "| mps | no | a / b |"


def test_a_child_that_fails_or_hangs_is_reported() -> None:
    assert run_child(("-c", "print('well')"), 30).output == "well\n"
    assert "exit code 1. " in (failed := run_child(("-c", "1 / 0"), 30)).failure
    assert "ZeroDivisionError" in failed.failure
    hung = run_child(("-c", "import time; print('so far', flush=True); time.sleep(60)"), 2)
    assert hung.failure.startswith("ended after 2 s")
    assert hung.output == "so far\n"


def test_two_processes_share_a_tensor() -> None:
    answer = ipc("cpu")
    assert answer.verdict == "yes"
    assert answer.numbers["worker_read_right"]
    assert answer.numbers["owner_read_right"]


class FakeDriver:
    """A card of 132 multiprocessors that parts come from in pairs."""

    def __init__(self, refuses: str = "") -> None:
        self.calls: list[str] = []
        self.refuses = refuses

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cu"):
            raise AttributeError(name)

        def call(*arguments: Any) -> int:
            self.calls.append(name)
            if name == self.refuses:
                return 914
            getattr(self, f"_{name}", lambda *_: None)(*arguments)
            return 0

        return call

    @staticmethod
    def _cuDeviceGetDevResource(device: Any, resource: Any, kind: ctypes.c_int) -> None:
        assert kind.value == 1
        resource._obj.sm_count = 132

    @staticmethod
    def _cuDevSmResourceSplitByCount(first: Any, groups: Any, whole: Any, *rest: Any) -> None:
        remainder, flags, count = rest
        assert (groups._obj.value, flags.value) == (1, 0)
        first._obj.sm_count = count.value + count.value % 2
        remainder._obj.sm_count = whole._obj.sm_count - first._obj.sm_count

    @staticmethod
    def _cuGreenCtxStreamCreate(stream: Any, *_: Any) -> None:
        stream._obj.value = 77

    @staticmethod
    def _cuGetErrorName(code: ctypes.c_int, name: Any) -> None:
        name._obj.value = b"CUDA_ERROR_INVALID_RESOURCE_TYPE"


def test_green_contexts_are_made_in_order_from_both_parts() -> None:
    fake = FakeDriver()
    parts = Driver(fake).split(33)
    assert [part.sm_count for part in parts] == [34, 98]
    assert [part.stream for part in parts] == [77, 77]
    made = [
        "cuDevResourceGenerateDesc",
        "cuGreenCtxCreate",
        "cuGreenCtxStreamCreate",
        "cuCtxFromGreenCtx",
    ]
    begun = ["cuInit", "cuDeviceGet", "cuDeviceGetDevResource", "cuDevSmResourceSplitByCount"]
    assert fake.calls == begun + made + made


def test_a_refusal_names_the_call_and_the_reason() -> None:
    with pytest.raises(DriverError, match=r"cuGreenCtxCreate: CUDA_ERROR_INVALID_RESOURCE_TYPE"):
        Driver(FakeDriver("cuGreenCtxCreate")).split(33)


def fake_control(folder: Path, monkeypatch: pytest.MonkeyPatch, start_code: int) -> Path:
    """A control program that notes how it was called."""
    notes = folder / "notes"
    program = folder / "nvidia-cuda-mps-control"
    program.write_text(
        f"""#!/bin/sh
if [ "$1" = -d ]; then
  echo "start $CUDA_MPS_PIPE_DIRECTORY $CUDA_MPS_LOG_DIRECTORY" >>{notes}
  echo 'another daemon is running'
  exit {start_code}
fi
echo "$(cat) $CUDA_MPS_PIPE_DIRECTORY" >>{notes}
"""
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return notes


def test_the_mps_daemon_has_folders_of_its_own_and_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = fake_control(tmp_path, monkeypatch, 0)
    with pytest.raises(ZeroDivisionError), _daemon() as environment:
        pipe = environment["CUDA_MPS_PIPE_DIRECTORY"]
        assert Path(pipe).is_dir()
        assert notes.read_text() == f"start {pipe} {environment['CUDA_MPS_LOG_DIRECTORY']}\n"
        _ = 1 / 0
    assert notes.read_text().splitlines()[-1] == f"quit -t 5 {pipe}"
    assert not Path(pipe).exists()


def test_a_daemon_that_does_not_start_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_control(tmp_path, monkeypatch, 1)
    with pytest.raises(NoDaemon, match="exit code 1: another daemon is running"), _daemon():
        pytest.fail("it started")
