"""A job that fails is told apart from a context that is lost."""

from typing import Any

import pytest
import torch

from muxcluster.engine.gpu import context
from muxcluster.engine.gpu.context import CONTEXT_LOST, ContextLost, SettledRunner
from muxcluster.engine.gpu.explaining import explained
from tests.engine_gpu.jobs import job_of

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
