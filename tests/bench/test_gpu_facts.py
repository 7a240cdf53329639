"""bench/gpu/facts.py without a GPU, its child processes, and its driver layers against fakes."""

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from bench.gpu import facts_green, facts_mps
from bench.gpu.children import run_child
from bench.gpu.facts import LIMITS_S, markdown
from bench.gpu.facts_ipc import ipc
from bench.gpu.facts_mps import NoDaemon, _daemon
from muxcluster.engine.gpu.driver import Driver, DriverError, GreenContext
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


class FakeCard:
    """132 multiprocessors; work on a part's stream runs on the ids that `ids_of` gives it."""

    def __init__(self, ids_of: dict[int, set[int]]) -> None:
        self.ids_of = ids_of
        self.stream = self.launched_on = 0

    def run(self) -> set[int]:
        return set(range(132))

    def launch(self) -> None:
        self.launched_on = self.stream

    def seen(self) -> set[int]:
        return self.ids_of[self.launched_on]

    def rate(self, streams: list[int]) -> list[float]:
        return [len(self.ids_of.get(stream, range(132))) * 6e12 for stream in streams]

    @contextmanager
    def on(self, stream: int) -> Iterator[None]:
        self.stream = stream
        yield
        self.stream = 0


class HalvesDriver:
    """Every split is into halves, streams 1 and 2."""

    def split(self, sm_count: int) -> list[GreenContext]:
        del sm_count
        return [GreenContext(66, stream, 0, 0) for stream in (1, 2)]

    def destroy(self, green: GreenContext) -> None:
        pass


@pytest.mark.parametrize(
    ("second", "verdict"),
    [(range(66, 132), "yes"), (range(60, 126), "no"), (range(66, 134), "no")],
    ids=["apart", "overlapping", "more than granted"],
)
def test_green_contexts_are_believed_only_when_work_keeps_apart(
    second: range, verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    card = FakeCard({1: set(range(66)), 2: set(second)})
    monkeypatch.setattr(facts_green, "Probe", lambda: card)
    monkeypatch.setattr(facts_green, "Products", lambda: card)
    monkeypatch.setattr(facts_green, "Driver", HalvesDriver)
    monkeypatch.setattr(facts_green, "_other_ways", lambda *_: [])
    monkeypatch.setattr(torch.cuda, "ExternalStream", int)
    monkeypatch.setattr(torch.cuda, "stream", card.on)
    monkeypatch.setattr(torch.cuda, "current_stream", int)
    answer = facts_green.green()
    assert answer.verdict == verdict
    assert f"seen [66, {len(second)}]" in answer.text


@pytest.mark.parametrize(
    ("seen", "verdict"), [((132, 66, 34), "yes"), ((132, 132, 132), "no"), ((132, 66, 0), "no")]
)
def test_mps_is_believed_only_when_shares_shrink(
    seen: tuple[int, ...], verdict: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = fake_control(tmp_path, monkeypatch, 0)
    by_share = dict(zip(("100", "50", "25"), seen, strict=True))
    started = []

    def child(environment: dict[str, str], name: str) -> dict[str, Any]:
        started.append((name, environment.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE")))
        assert "CUDA_MPS_PIPE_DIRECTORY" in environment
        if name == "ipc":
            return {"text": "mapped"}
        count = by_share[environment["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"]]
        return {"numbers": {"attribute": count, "seen": count, "flops_per_s": 1e14}}

    monkeypatch.setattr(facts_mps, "_child", child)
    monkeypatch.setattr(facts_mps, "_ask", partial(answering, facts_mps._ask))
    answer = facts_mps.mps()
    assert answer.verdict == verdict
    assert started == [("mps-client", share) for share in ("100", "50", "25", "50", "50")] + [
        ("ipc", None)
    ]
    assert notes.read_text().splitlines()[-1].startswith("quit -t 5")


def answering(ask: Any, environment: dict[str, str], command: str) -> str:
    """The fake control program has no server to name."""
    ask(environment, command)
    return "4242" if command == "get_server_list" else ""
