"""A job that fails is told apart from a context that is lost."""

import os
from dataclasses import replace
from typing import Any

import pytest
import torch

from muxcluster.engine.gpu import context
from muxcluster.engine.gpu.context import (
    CONNECTIONS,
    CONTEXT_LOST,
    ContextLost,
    SettledRunner,
    open_own_context,
)
from muxcluster.engine.gpu.green import parts
from muxcluster.engine.gpu.mps.explaining import explained
from muxcluster.engine.gpu.mps.spawned import environment_of
from muxcluster.engine.processes.rungs import WorkerRung
from muxcluster.engine.unit import in_process as inprocess
from muxcluster.engine.unit.executor_choice import make_executor
from tests.engine.fakes import fake_spec
from tests.engine.gpu.jobs import job_of

CUDA = torch.device("cuda:0")


class Failing:
    def launch(self, job: object) -> None:
        raise ValueError("a bad job")


def zeros(error: Exception | None) -> Any:
    def made(*_: object, device: torch.device) -> torch.Tensor:
        assert device == CUDA
        if error is not None:
            raise error
        return torch.ones(1)

    return made


def test_the_jobs_own_error_stays_while_the_context_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context.torch, "zeros", zeros(None))
    with pytest.raises(ValueError, match="a bad job"):
        SettledRunner(Failing(), CUDA).launch(job_of(0, 0.5))


def test_a_broken_context_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = RuntimeError("CUDA error: an illegal memory access\nwas encountered")
    monkeypatch.setattr(context.torch, "zeros", zeros(broken))
    with pytest.raises(ContextLost) as caught:
        SettledRunner(Failing(), CUDA).launch(job_of(0, 0.5))
    assert caught.value.code == CONTEXT_LOST
    assert caught.value.reason == "CUDA error: an illegal memory access was encountered"


def test_an_explanation_ends_with_the_daemons_log(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "server.log").write_text("[Server] out of\nmemory\n")
    monkeypatch.setenv("CUDA_MPS_LOG_DIRECTORY", str(tmp_path))
    said = explained("CUDA_ERROR_MPS_CONNECTION_FAILED (805)")
    assert said.startswith("a process cannot reach the MPS server (CUDA_ERROR_MPS_CONNECTION")
    assert said.endswith("log ends: [Server] out of memory")


class FakeContexts:
    """What the driver reads from the environment when a context is created."""

    def __init__(self, patch: pytest.MonkeyPatch, *, is_initialized: bool = False) -> None:
        self.connections: list[str | None] = []
        patch.setattr(context.torch.cuda, "set_device", lambda device: None)
        patch.setattr(context.torch.cuda, "is_initialized", lambda: is_initialized)
        patch.setattr(context.torch, "zeros", self._zeros)

    def _zeros(self, *_: object, device: torch.device) -> torch.Tensor:
        assert device == CUDA
        self.connections.append(os.environ.get(CONNECTIONS))
        return torch.ones(1)


@pytest.mark.parametrize(("users", "read"), [(None, "32"), ("4", "4")])
@pytest.mark.parametrize("partition", ["none", "green"])
def test_a_unit_in_one_process_has_a_queue_for_each_of_its_streams(
    monkeypatch: pytest.MonkeyPatch, partition: str, users: str | None, read: str
) -> None:
    """And child processes do not inherit the number: under MPS it would cost clients."""
    monkeypatch.delenv(CONNECTIONS, raising=False)
    if users is not None:
        monkeypatch.setenv(CONNECTIONS, users)
    contexts = FakeContexts(monkeypatch)

    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(inprocess, "UnitRunner", stop)
    monkeypatch.setattr(parts, "Driver", stop)
    executor = make_executor(replace(fake_spec(), device="cuda:0", partition=partition))
    with pytest.raises(KeyboardInterrupt):
        executor.start()
    executor.close()
    assert contexts.connections == [read]
    assert os.environ.get(CONNECTIONS) == users
    given = environment_of(WorkerRung(0, 0, 0.5), os.environ)
    assert given.get(CONNECTIONS) == users


@pytest.mark.parametrize(("users", "warns"), [(None, True), ("32", False)])
def test_a_context_that_exists_keeps_its_queues_and_a_warning_says_so(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    users: str | None,
    warns: bool,
) -> None:
    FakeContexts(monkeypatch, is_initialized=True)
    open_own_context(CUDA, {} if users is None else {CONNECTIONS: users})
    assert ("a CUDA context exists already" in caplog.text) == warns
