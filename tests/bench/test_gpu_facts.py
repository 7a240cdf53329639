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

from bench.gpu import facts
from bench.gpu.fact_checks import fact, green, mps
from bench.gpu.fact_checks.answer import last_answer
from bench.gpu.fact_checks.ipc import ipc
from bench.gpu.running.children import Ended, run_child
from bench.gpu.running.found import Found
from muxcluster.engine.gpu.driver import Driver
from tests.conftest import ROOT
from tests.engine.gpu.conftest import fake_control
from tests.engine.gpu.fakes import SMS, FakeCuda

SCRIPT = ROOT / "bench" / "gpu" / "facts.py"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(tmp_path: Path) -> None:
    command = (sys.executable, str(SCRIPT), "--json", "record.json", "--markdown", "FACTS.md")
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert done.stderr.strip().splitlines()[-1].startswith("no GPU")
    assert not (tmp_path / "FACTS.md").exists()


def test_a_check_that_fails_is_a_failed_part(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = {"verdict": "no", "text": "none", "numbers": {"copy_samples_s": [1.0, 2.0]}}
    printed = json.dumps(answer) + "\n"
    outcomes = iter((Ended("", printed), Ended("exit code 1. cannot", "", "cannot")))
    monkeypatch.setattr(facts, "run_child", lambda *_: next(outcomes))
    (said,) = facts._found("green_contexts", 60.0, dry=False).parts.values()
    assert (said.verdict, said.rows[0]["verdict"]) == ("ok", "no")
    assert said.samples == {"copy_samples_s": [1.0, 2.0]}
    (failed,) = facts._found("mps", 60.0, dry=False).parts.values()
    assert (failed.verdict, failed.reason) == ("failed", "exit code 1. cannot")
    assert failed.rows[0]["verdict"] == "failed"
    (late,) = facts._found("mps", 3.0, dry=False).parts.values()
    assert late.verdict == "no time"
    found = Found({part.name: part for part in (said, failed)})
    values = {claim.name: claim.value for claim in facts.claims_of(found, {"dry": False})}
    assert values == {"checks_failed": 1, "green_contexts": 0, "mps": 0}


def test_the_page_has_a_row_a_check() -> None:
    page = facts.markdown([{"case": "mps", "verdict": "no", "text": "a | b"}])
    assert page.splitlines()[-1] == "| mps | no | a / b |"


def test_a_child_that_fails_or_hangs_is_reported() -> None:
    assert run_child(("-c", "print('well')"), 30).output == "well\n"
    assert "exit code 1. " in (failed := run_child(("-c", "1 / 0"), 30)).failure
    assert "ZeroDivisionError" in failed.failure
    hung = run_child(("-c", "import time; print('so far', flush=True); time.sleep(60)"), 2)
    assert hung.failure.startswith("ended after 2 s")
    assert hung.output == "so far\n"


@pytest.mark.slow
def test_two_processes_share_a_tensor() -> None:
    answer = ipc("cpu")
    assert answer.verdict == "yes"
    assert answer.numbers["worker_read_right"]
    assert answer.numbers["owner_read_right"]


def test_facts_need_neither_msgspec_nor_transformers() -> None:
    """They are the first to run on a new machine."""
    absent = "msgspec", "transformers", "pydantic", "zmq"
    block = f"import sys; sys.modules.update(dict.fromkeys({absent}))"
    code = f"{block}; import bench.gpu.fact_checks.fact"
    ended = run_child(("-c", code), 60)
    assert not ended.failure


def test_the_mps_daemon_is_stopped_though_a_client_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    control = fake_control(tmp_path, monkeypatch)
    monkeypatch.setattr(mps, "_child", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        list(mps.mps())
    assert control.asked()[0] == "start"
    assert control.asked()[-1] == "ask quit -t 5"


def test_a_daemon_that_does_not_start_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    control = fake_control(tmp_path, monkeypatch)
    control.install(code=1, words="no room for a daemon")
    monkeypatch.setattr(mps, "_clients", lambda _: pytest.fail("it started"))
    (answer,) = mps.mps()
    assert answer.verdict == "no"
    assert "ended with 1: no room for a daemon" in answer.text


class FakeCard:
    """Work on a stream runs on the multiprocessors that a fake driver says, unless told others."""

    def __init__(self, driver: FakeCuda, told: dict[int, set[int]]) -> None:
        self._driver, self._told = driver, told
        self.stream = self.launched_on = 0

    def ids_of(self, stream: int) -> set[int]:
        return self._told.get(stream) or set(self._driver.sms.get(stream, range(SMS)))

    def run(self) -> set[int]:
        return set(range(SMS))

    def launch(self) -> None:
        self.launched_on = self.stream

    def seen(self) -> set[int]:
        return self.ids_of(self.launched_on)

    def rate(self, streams: list[int]) -> list[float]:
        return [len(self.ids_of(stream)) * 6e12 for stream in streams]

    @contextmanager
    def on(self, stream: int) -> Iterator[None]:
        self.stream = stream
        yield
        self.stream = 0


@pytest.fixture
def fake_driver(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    """The driver of green; streams are numbered from 100 on, two a share."""
    driver = FakeCuda()
    monkeypatch.setattr(green, "Driver", lambda: Driver(driver))
    monkeypatch.setattr(torch.cuda, "ExternalStream", int)
    monkeypatch.setattr(torch.cuda, "current_stream", int)
    return driver


def put_card(driver: FakeCuda, patch: pytest.MonkeyPatch, told: dict[int, set[int]]) -> FakeCard:
    card = FakeCard(driver, told)
    patch.setattr(green, "Probe", lambda: card)
    patch.setattr(green, "Products", lambda: card)
    patch.setattr(torch.cuda, "stream", card.on)
    return card


@pytest.mark.parametrize(
    ("told", "verdict"),
    [
        ({}, "yes"),
        ({101: set(range(60, 128))}, "no"),
        ({101: set(range(64, 134))}, "no"),
    ],
    ids=["apart", "overlapping", "more than granted"],
)
def test_green_contexts_are_believed_only_when_work_keeps_apart(
    told: dict[int, set[int]],
    verdict: str,
    fake_driver: FakeCuda,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    put_card(fake_driver, monkeypatch, told)
    monkeypatch.setattr(green, "_other_ways", lambda *_: {})
    *_, answer = green.green()
    assert answer.verdict == verdict
    assert f"seen [64, {len(told.get(101, range(68)))}]" in answer.text
    assert fake_driver.calls.count("cuDevSmResourceSplitByCount") == 2, "a query and one split"


class StickyError(RuntimeError):
    """What every later call of the process raises, too."""


def test_a_sticky_error_costs_no_verdict_that_was_known(
    fake_driver: FakeCuda, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The context breaks at the second share, and the process fails; the first share's is kept."""
    card = put_card(fake_driver, monkeypatch, {})
    rate = card.rate

    def breaking(streams: list[int]) -> list[float]:
        if 102 in streams:
            raise StickyError("an illegal memory access was encountered")
        return rate(streams)

    monkeypatch.setattr(card, "rate", breaking)
    with pytest.raises(StickyError):
        fact.main("green_contexts")
    answer = last_answer(capsys.readouterr().out, "exit code 1. illegal memory access")
    assert answer["verdict"] == "yes"
    assert "asked for 50%" in answer["text"]
    assert answer["text"].endswith("Then it failed: exit code 1. illegal memory access")


def test_dangerous_probes_come_after_the_verdict(
    fake_driver: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every one of them breaks here, as on this machine, which has no GPU."""
    put_card(fake_driver, monkeypatch, {})
    answers = list(green.green())
    assert [answer.verdict for answer in answers] == ["yes"] * 7
    assert "half of a second split" not in answers[2].text
    assert "the part made the current context: " in answers[-1].text
    assert all(f"share_{share}" in answers[2].numbers for share in (0.25, 0.5, 0.75))


def test_the_last_whole_line_counts() -> None:
    line = '{"verdict": "yes", "text": "a", "numbers": {}}\n'
    assert last_answer(line + line.replace("a", "b"), "")["text"] == "b"
    assert last_answer(line + '{"verdict": "n', "killed")["verdict"] == "yes"
    assert last_answer("", "killed") == {"verdict": "failed", "text": "killed", "numbers": {}}


@pytest.mark.slow
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

    monkeypatch.setattr(mps, "_child", child)
    answers = list(mps.mps())
    assert [answer.verdict for answer in answers] == [verdict] * 3
    assert "beside another" not in answers[0].text and "mapped" in answers[2].text
    assert started == [("mps-client", share) for share in ("100", "50", "25", "50", "50")] + [
        ("ipc", None)
    ]
    assert control.asked()[-2:] == ["ask get_server_list", "ask quit -t 5"]
