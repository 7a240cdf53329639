"""What ends a measurement: a job or a process was lost."""

from muxcluster.core.errors import EngineFailure
from muxcluster.engine.executor import JobFailed, Outcome, OwnerLost


def check_outcome(outcome: Outcome) -> None:
    """Raise EngineFailure if a job or all memory is lost."""
    if isinstance(outcome, JobFailed | OwnerLost):
        raise EngineFailure(f"profiling stopped: {outcome.message}")
