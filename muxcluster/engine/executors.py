"""The executor that a unit's partition asks for, loaded by name.

By name, because the unit's own process runs no model: with workers in child processes it never
imports torch, which saves seconds at each start and some 300 MB.
"""

from importlib import import_module

from muxcluster.core.errors import ConfigError
from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.executor import Executor

_EXECUTORS = {
    "none": ("muxcluster.engine.inprocess", "InProcessExecutor"),
    "threads": ("muxcluster.engine.processes", "ProcessExecutor"),
}


def make_executor(spec: UnitSpec) -> Executor:
    """Not started. Raises ConfigError for an unknown partition, or one the device cannot have."""
    if spec.partition not in _EXECUTORS:
        message = f"unknown partition {spec.partition!r}: use 'threads' or 'none'"
        raise ConfigError(spec.unit_id, "partition", message)
    if spec.partition == "threads" and spec.device != "cpu":
        message = f"'threads' forks workers on the CPU; with device {spec.device!r} use 'none'"
        raise ConfigError(spec.unit_id, "partition", message)
    module, name = _EXECUTORS[spec.partition]
    executor: Executor = getattr(import_module(module), name)(spec)
    return executor
