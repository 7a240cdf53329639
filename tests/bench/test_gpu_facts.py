"""bench/gpu/facts.py without a GPU, its child processes, and its driver layers against fakes."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from bench.gpu import facts_green, facts_mps
from bench.gpu.children import run_child
from bench.gpu.facts import LIMITS_S, markdown
from bench.gpu.facts_ipc import ipc
from muxcluster.engine.gpu.driver import GreenContext
from tests.conftest import ROOT
from tests.engine_gpu.conftest import fake_control

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


def test_facts_need_neither_msgspec_nor_transformers() -> None:
    """They are the first to run on a new machine."""
    absent = "msgspec", "transformers", "pydantic", "zmq"
    code = f"import sys; sys.modules.update(dict.fromkeys({absent})); import bench.gpu.fact"
    ended = run_child(("-c", code), 60)
    assert not ended.failure


def test_the_mps_daemon_is_stopped_though_a_client_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    control = fake_control(tmp_path, monkeypatch)
    monkeypatch.setattr(facts_mps, "_child", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        facts_mps.mps()
    assert control.asked()[0] == "start"
    assert control.asked()[-1] == "ask quit -t 5"


def test_a_daemon_that_does_not_start_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    control = fake_control(tmp_path, monkeypatch)
    control.install(code=1, words="no room for a daemon")
    monkeypatch.setattr(facts_mps, "_clients", lambda _: pytest.fail("it started"))
    answer = facts_mps.mps()
    assert answer.verdict == "no"
    assert "ended with 1: no room for a daemon" in answer.text


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
    control = fake_control(tmp_path, monkeypatch)
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
    answer = facts_mps.mps()
    assert answer.verdict == verdict
    assert started == [("mps-client", share) for share in ("100", "50", "25", "50", "50")] + [
        ("ipc", None)
    ]
    assert control.asked()[-2:] == ["ask get_server_list", "ask quit -t 5"]
