"""Partition `auto` takes what the node has, and says in one line which and why."""

import logging
import os
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from muxcluster.core.errors import EngineFailure
from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.gpu.mps.trial import try_mps
from muxcluster.engine.unit.partition_choice import settle_partition
from tests.conftest import ROOT
from tests.engine.fakes import fake_spec
from tests.engine.gpu.conftest import FakeControl

NEW = SimpleNamespace(cuGreenCtxStreamCreate=None)
OLD = SimpleNamespace()


def spec_on(device: str) -> UnitSpec:
    return replace(fake_spec(), device=device, partition="auto")


def refusing(gpu_id: str) -> None:
    raise EngineFailure(f"no daemon for {gpu_id}")


def loading(library: Any) -> Any:
    def load(name: str) -> Any:
        if library is None:
            raise OSError(name)
        return library

    return load


@pytest.mark.parametrize(
    ("has_daemon", "library", "partition", "says"),
    [
        (True, None, "mps", "partition mps: an MPS daemon can be had, and lets clients in"),
        (False, NEW, "green", "partition green, for want of MPS: no daemon for 1"),
        (False, OLD, "none", "partition none: no daemon for 1; libcuda.so.1 has no green contexts"),
        (False, None, "none", "partition none: no daemon for 1; libcuda.so.1 cannot be loaded"),
    ],
)
def test_the_first_that_the_node_has(
    has_daemon: bool,
    library: Any,
    partition: str,
    says: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    tried: list[str] = []
    with caplog.at_level(logging.INFO):
        chosen = settle_partition(
            spec_on("cuda:1"), tried.append if has_daemon else refusing, loading(library)
        )
    assert chosen.partition == partition
    assert tried == ["1"] * has_daemon
    assert [record.getMessage() for record in caplog.records] == [f"{chosen.unit_id}: {says}"]
    if partition == "none":
        assert [worker.shares for worker in chosen.workers] == [(1.0,)]
        assert chosen.scheduler.lane == "mixed"
    else:
        assert chosen.workers == spec_on("cuda:1").workers


@pytest.mark.parametrize(("library", "partition"), [(NEW, "green"), (OLD, "none"), (None, "none")])
def test_ranks_try_no_daemon(library: Any, partition: str) -> None:
    asked = replace(spec_on("cuda:1"), tp=2, rank_devices=("cuda:1", "cuda:2"))
    asked = replace(asked, scheduler=replace(asked.scheduler, pipeline_depth=2))
    tried: list[str] = []
    chosen = settle_partition(asked, tried.append, loading(library))
    assert (chosen.partition, tried) == (partition, [])
    assert chosen.scheduler.pipeline_depth == (2 if partition == "green" else 1)


@pytest.mark.parametrize(
    ("fate", "limit_s", "partition", "says"),
    [
        ("works", 120.0, "mps", "an MPS daemon can be had, and lets clients in"),
        ("refused", 120.0, "green", "a client under it fails: RuntimeError: CUDA error: all CUDA-"),
        ("dies", 120.0, "green", "a client under it fails: exit status -9"),
        ("hangs", 1.0, "green", "a client under it has done nothing after 1 s"),
    ],
)
def test_mps_is_taken_only_where_a_client_works(
    control: FakeControl,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    fate: str,
    limit_s: float,
    partition: str,
    says: str,
) -> None:
    monkeypatch.setenv("MUXCLUSTER_CLIENT", fate)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    tried = partial(try_mps, module="tests.engine.gpu.trial_client", limit_s=limit_s)
    with caplog.at_level(logging.INFO):
        assert settle_partition(spec_on("cuda:0"), tried, loading(NEW)).partition == partition
    (record,) = caplog.records
    assert says in record.getMessage()
    assert control.asked()[0] == "start"
    assert control.asked()[-1] == "ask quit -t 5"


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_node_whose_daemon_starts_but_which_has_no_gpu_falls_back(
    control: FakeControl, caplog: pytest.LogCaptureFixture
) -> None:
    """The real client, refused for real."""
    with caplog.at_level(logging.INFO):
        assert settle_partition(spec_on("cuda:0"), load_driver=loading(NEW)).partition == "green"
    assert "a client under it fails: " in caplog.text
    assert control.asked()[-1] == "ask quit -t 5"


def test_a_client_that_runs_without_the_daemon_is_no_proof(
    control: FakeControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CUDA goes on without MPS where it cannot connect; then the daemon has started no server."""
    monkeypatch.setenv("MUXCLUSTER_CLIENT", "works")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    control.install(servers="")
    with pytest.raises(EngineFailure, match="a client runs without it"):
        try_mps("0", "tests.engine.gpu.trial_client")


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", "cuda:7"])
def test_the_real_client_says_whether_it_worked(device: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "muxcluster.engine.gpu.mps.trial_client", device],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert ended.returncode == (device != "cpu")
    assert len(ended.stdout.splitlines()) == ended.returncode


_SETTLE = """
import logging, sys
from dataclasses import replace
from types import SimpleNamespace
from muxcluster.engine.unit.partition_choice import settle_partition
from tests.engine.fakes import fake_spec

logging.basicConfig(level=logging.INFO, stream=sys.stdout)
spec = replace(fake_spec(), device="cuda:0", partition="auto")
new = SimpleNamespace(cuGreenCtxStreamCreate=None)
print(settle_partition(spec, lambda gpu_id: None, lambda name: new).partition)
"""


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("from ._core import encode", "msgspec, which cannot be imported (No module named 'msgsp"),
        ("raise SystemError('bad ABI')", "which cannot be imported (SystemError: bad ABI)"),
        (None, "worker processes need msgspec, which is not installed"),
    ],
    ids=["a wheel of another Python", "broken otherwise", "absent"],
)
def test_a_protocol_that_is_found_but_breaks_is_none(
    tmp_path: Path, body: str | None, says: str
) -> None:
    """The wheel of another Python has the package and lacks the library for this one."""
    hide = "import sys; sys.modules['msgspec'] = None\n" if body is None else ""
    if body is not None:
        (tmp_path / "msgspec").mkdir()
        (tmp_path / "msgspec" / "__init__.py").write_text(body)
    ended = subprocess.run(
        [sys.executable, "-c", hide + _SETTLE],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    lines = ended.stdout.splitlines()
    assert lines[-1] == "green"
    assert says in lines[-2]


def test_a_units_own_process_needs_no_torch_for_mps() -> None:
    code = "import sys, muxcluster.engine.gpu.mps.launcher; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


def test_a_choice_that_is_made_stays() -> None:
    spec = replace(spec_on("cuda:0"), partition="green")
    assert settle_partition(spec, refusing) is spec
    assert settle_partition(spec_on("cpu"), refusing).partition == "threads"


def test_a_unit_with_states_runs_in_no_process_of_mps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    spec = spec_on("cuda:1")
    models = tuple(replace(each, state_columns=1) for each in spec.models)
    tried: list[str] = []
    chosen = settle_partition(replace(spec, models=models), tried.append, loading(NEW))
    assert (chosen.partition, tried) == ("green", [])
