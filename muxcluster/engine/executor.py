"""Executor protocol: where jobs run, as the unit sees it. Launch a job, wait for its outcome."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from muxcluster.core.backends import ModelBackend
from muxcluster.core.job import Job, JobResult
from muxcluster.core.residency import Move


@dataclass(frozen=True, slots=True)
class JobDone:
    """The job ran; `result.job_id` says which."""

    result: JobResult


@dataclass(frozen=True, slots=True)
class JobFailed:
    """The job raised, or its worker died or hung; `message` is for people."""

    job_id: int
    worker_id: int
    message: str
    has_started: bool = True  # False if the worker was gone before it took the job


@dataclass(frozen=True, slots=True)
class OwnerLost:
    """The process with weights and pool is lost, and every running job with it."""

    message: str


@dataclass(frozen=True, slots=True)
class StillRunning:
    """Some job or move runs, and all processes that take part show signs of life."""


@dataclass(frozen=True, slots=True)
class Moved:
    """The move is done: the model's jobs can run, or its memory is free."""

    move_id: int
    seconds: float
    backend: ModelBackend | None = None  # of a model that woke


@dataclass(frozen=True, slots=True)
class MoveFailed:
    """The model did not wake, and holds no memory; `message` is for people.

    is_final: trying again cannot help, for instance because a file is broken.
    """

    move_id: int
    message: str
    is_final: bool


@dataclass(frozen=True, slots=True)
class ModelLost:
    """The processes of a resident model are gone; its jobs were reported as failed before.

    Its keys and values in the pool are sound; its tables are lost.
    """

    model: str
    message: str


Outcome = JobDone | JobFailed | OwnerLost | StillRunning | Moved | MoveFailed | ModelLost


class Executor(Protocol):
    """The workers of one unit.

    Only `wake`, `kill` and `is_recovering` may be used from other threads.
    """

    @property
    def backends(self) -> tuple[ModelBackend, ...]:
        """How the models run, once started; models that are missing run as specified."""
        ...

    @property
    def is_recovering(self) -> bool:
        """True while some process is silent, is being replaced, or loads again."""
        ...

    def start(self) -> None:
        """Load the models and make the workers.

        Raises LoadError naming the file at fault, EngineFailure where the process died.
        """
        ...

    def launch(self, job: Job) -> None:
        """Give the job to the worker it names, which is idle or has the job that this one follows.

        If the job that it follows fails, this one fails without running.
        """
        ...

    def wait(self, timeout_s: float | None) -> Sequence[Outcome]:
        """Block until a job ends, `wake` is called or the time is up; return what ended, in order.

        May return earlier with nothing or StillRunning. After OwnerLost nothing runs until
        `restart`. Raises EngineFailure where workers are lost so often that it gives up.
        """
        ...

    def restart(self) -> None:
        """After OwnerLost: load again and make new workers, all memory empty.

        Tries again if the new owner is lost too. Raises LoadError as `start`, and EngineFailure
        after too many losses or `kill`.
        """
        ...

    def wake(self) -> None:
        """Make a `wait` in another thread return at once (the next one, if none is waiting)."""
        ...

    def kill(self) -> None:
        """End child processes at once, so that a blocked call returns; `close` must follow."""
        ...

    def close(self) -> None:
        """End the workers and release all they hold; idempotent."""
        ...


@runtime_checkable
class MovesModels(Protocol):
    """What an executor can do in addition if models take turns in memory.

    After `start` and `restart` the models of `resident_at_start` are resident, all others parked.
    """

    def move(self, move: Move) -> None:
        """Begin the move, one at a time, and return at once; `wait` reports its end.

        Jobs of other models go on. A model that is parked must have no job.
        """
        ...
