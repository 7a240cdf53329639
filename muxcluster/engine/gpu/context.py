"""One process's view of the CUDA device: open a context, wait for work, check that it works."""

import logging
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager

import torch

from muxcluster.core.job import Job, JobResult
from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.gpu.gpu_id import PERCENTAGE
from muxcluster.engine.sampling.results import has_passed, new_event
from muxcluster.engine.steps.pending_job import PendingJob
from muxcluster.engine.steps.runner import UnitRunner

logger = logging.getLogger(__name__)

# Number of hardware queues of a context, read by the driver when it is created.
CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"

# The most there are. The default is 8, and streams that share a queue wait for each other; a unit
# in one process has one stream per worker and share.
_NUM_CONNECTIONS = 32

CONTEXT_LOST = 86  # exit status of a process whose context is lost


class ContextLost(SystemExit):
    """The CUDA context of this process is unusable: all that the process may do is end."""

    # SystemExit and no Exception, so that it is not taken for the failure of one job.

    def __init__(self, reason: str) -> None:
        super().__init__(CONTEXT_LOST)
        self.reason = reason


def open_context(device: torch.device, spec: UnitSpec, environment: Mapping[str, str]) -> None:
    """Create the context. On the CPU set threads instead: a percentage of the unit's threads.

    Raises RuntimeError with CUDA's message.
    """
    if device.type == "cuda":
        _create_context(device)
        return
    share = float(environment.get(PERCENTAGE, "100")) / 100
    torch.set_num_threads(max(1, round(share * spec.num_threads)))


def open_own_context(device: torch.device, environment: MutableMapping[str, str]) -> None:
    """Create the context of a unit that runs all its jobs in this process, with 32 hardware queues.

    Keeps a number of queues that the user has set. The environment, which child processes inherit,
    is unchanged on return. Not for processes under MPS. Raises RuntimeError with CUDA's message.
    """
    # All clients of an MPS server share one set of queues; one that takes many leaves fewer
    # clients.
    if device.type != "cuda":
        return
    if CONNECTIONS in environment:
        _create_context(device)
        return
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch leaves it untyped
        logger.warning(
            "a CUDA context exists already and keeps its hardware queues (8, unless %s said "
            "otherwise): streams may wait for each other",
            CONNECTIONS,
        )
    environment[CONNECTIONS] = str(_NUM_CONNECTIONS)
    try:
        _create_context(device)
    finally:
        del environment[CONNECTIONS]


def _create_context(device: torch.device) -> None:
    torch.cuda.set_device(device)
    torch.zeros(1, device=device)


def check_context(device: torch.device) -> None:
    """Raise ContextLost if the context is broken, by this process or by another one under MPS."""
    if device.type != "cuda":
        return
    try:
        torch.zeros(1, device=device).item()
    except RuntimeError as error:
        raise ContextLost(" ".join(str(error).split())[:300]) from error


class SettledJob:
    """A job that ends when its results are in memory, because others read them on other streams."""

    def __init__(self, job: PendingJob, device: torch.device) -> None:
        """job: launched just now on the current stream of `device`."""
        self._job = job
        self._device = device
        self._all_done: torch.cuda.Event | None = None
        if device.type == "cuda":
            self._all_done = new_event()
            self._all_done.record(torch.cuda.current_stream(device))

    @property
    def is_done(self) -> bool:
        return self._job.is_done and (self._all_done is None or has_passed(self._all_done))

    def result(self) -> JobResult:
        """Wait for the results. Raises what the job raises, or ContextLost."""
        with watched(self._device):
            result = self._job.result()
            if self._all_done is not None:
                self._all_done.synchronize()
            return result


class SettledRunner:
    """Runner of `SettledJob`s."""

    def __init__(self, runner: UnitRunner, device: torch.device) -> None:
        self._runner = runner
        self._device = device

    def launch(self, job: Job) -> SettledJob:
        """As `UnitRunner.launch`; raises ContextLost if the context is lost with it."""
        with watched(self._device):
            return SettledJob(self._runner.launch(job), self._device)

    def waits(self, job: Job) -> bool:
        return self._runner.waits(job)

    def record_next(self) -> bool:
        """As `UnitRunner.record_next`; raises ContextLost if the context is lost with it."""
        with watched(self._device):
            return self._runner.record_next()


@contextmanager
def watched(device: torch.device) -> Iterator[None]:
    """Raise ContextLost instead of a failure inside the block if the device's context is lost."""
    try:
        yield
    except Exception as error:
        check_context(device)
        raise error
