"""Partition `auto` takes what the node has, and says in one line which and why."""

import logging
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from muxcluster.core.errors import EngineFailure
from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.gpu.choice import settled
from tests.conftest import ROOT
from tests.engine.fakes import fake_spec

NEW = SimpleNamespace(cuGreenCtxStreamCreate=None)
OLD = SimpleNamespace()


def spec_on(device: str) -> UnitSpec:
    return replace(fake_spec(), device=device, partition="auto")


def refusing(card: str) -> None:
    raise EngineFailure(f"no daemon for {card}")


def loading(library: Any) -> Any:
    def load(name: str) -> Any:
        if library is None:
            raise OSError(name)
        return library

    return load


@pytest.mark.parametrize(
    ("has_daemon", "library", "partition", "says"),
    [
        (True, None, "mps", "partition mps: an MPS daemon can be had"),
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
        chosen = settled(
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


def test_a_units_own_process_needs_no_torch_for_mps() -> None:
    code = "import sys, muxcluster.engine.gpu.mps; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


def test_a_choice_that_is_made_stays() -> None:
    spec = replace(spec_on("cuda:0"), partition="green")
    assert settled(spec, refusing) is spec
    assert settled(spec_on("cpu"), refusing).partition == "threads"
