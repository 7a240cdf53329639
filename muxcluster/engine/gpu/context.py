"""The device as one process sees it: made ready, awaited, and asked whether it still works."""

from collections.abc import Mapping

import torch

from muxcluster.core.job import Job, JobResult
from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.gpu.card import PERCENTAGE
from muxcluster.engine.runner import UnitRunner

CONTEXT_LOST = 86
"""Exit status of a process whose context is lost."""


class ContextLost(SystemExit):
    """The CUDA context of this process is unusable: all that it may do is end. No `Exception`, so
    that it is not taken for the failure of one job."""

    def __init__(self, reason: str) -> None:
        super().__init__(CONTEXT_LOST)
        self.reason = reason


def open_context(device: torch.device, spec: UnitSpec, environment: Mapping[str, str]) -> None:
    """Create the context. On the CPU a percentage is one of the unit's threads.

    Raises RuntimeError with CUDA's words.
    """
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.zeros(1, device=device)
        return
    share = float(environment.get(PERCENTAGE, "100")) / 100
    torch.set_num_threads(max(1, round(share * spec.num_threads)))


def check_context(device: torch.device) -> None:
    """Raises ContextLost where an error of this process, or of a neighbour, broke the context."""
    if device.type != "cuda":
        return
    try:
        torch.zeros(1, device=device).item()
    except RuntimeError as error:
        raise ContextLost(" ".join(str(error).split())[:300]) from error


class SettledRunner:
    """A runner whose results are in memory when it answers: others read them on other streams."""

    def __init__(self, runner: UnitRunner, device: torch.device) -> None:
        self._runner = runner
        self._device = device

    def execute(self, job: Job) -> JobResult:
        """Raises what the job raises, ContextLost where the context is lost with it."""
        try:
            result = self._runner.execute(job)
            if self._device.type == "cuda":
                torch.cuda.current_stream(self._device).synchronize()
        except Exception as error:
            check_context(self._device)
            raise error
        return result
