"""The executor that a unit's partition asks for."""

from muxcluster.core.errors import ConfigError
from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.executor import Executor
from muxcluster.engine.inprocess import InProcessExecutor
from muxcluster.engine.processes import ProcessExecutor


def make_executor(spec: UnitSpec) -> Executor:
    """Not started. Raises ConfigError for an unknown partition, or one the device cannot have."""
    if spec.partition == "none":
        return InProcessExecutor(spec)
    if spec.partition != "threads":
        message = f"unknown partition {spec.partition!r}: use 'threads' or 'none'"
        raise ConfigError(spec.unit_id, "partition", message)
    if spec.device != "cpu":
        message = f"'threads' forks workers on the CPU; with device {spec.device!r} use 'none'"
        raise ConfigError(spec.unit_id, "partition", message)
    return ProcessExecutor(spec)
