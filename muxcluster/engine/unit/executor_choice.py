"""Chooses the executor that a unit's partition asks for."""

from muxcluster.core.errors import ConfigError
from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.executor import Executor
from muxcluster.engine.unit.partition_choice import settle_partition

_ON_CPU = frozenset({"threads", "none"})
_MOST_APART = 2  # workers of a rank whose green contexts have no SM in common
_ON_GPU = frozenset({"mps", "green", "none"})


def make_executor(spec: UnitSpec) -> Executor:
    """Return the executor of the unit's partition; it is not started yet.

    "auto" is settled here at the latest (partition_choice.py); a caller that also makes the unit's
    scheduler settles it before. Raises ConfigError for an unknown partition, one that the device
    cannot have, or one in which models cannot take turns in memory though they must.
    """
    spec = settle_partition(spec)
    known = _ON_CPU if spec.device == "cpu" else _ON_GPU
    if spec.partition not in known:
        message = f"{spec.partition!r} is none of device {spec.device!r}: use "
        raise ConfigError(spec.unit_id, "partition", message + " or ".join(sorted(known)))
    if spec.tp > 1:
        _check_ranks(spec)
    if spec.resident_bytes:
        _check_moves(spec)
    try:
        return _executor(spec)
    except ImportError as missing:
        if (missing.name or "").partition(".")[0] != "msgspec":
            raise
        message = (
            f"{spec.partition!r} runs worker processes, which need msgspec for this Python "
            f"({missing}): pip install 'muxcluster[serve]'"
        )
        raise ConfigError(spec.unit_id, "partition", message) from missing


def _executor(spec: UnitSpec) -> Executor:
    # Imported here: a unit with child processes runs no model in its own process and never imports
    # torch, which saves seconds at each start and some 300 MB.
    if spec.tp > 1:
        if spec.partition == "threads":
            from muxcluster.engine.parallel.group_executor import GroupExecutor

            return GroupExecutor(spec)
        from muxcluster.engine.parallel.executor import RanksExecutor

        return RanksExecutor(spec)
    if spec.resident_bytes:
        from muxcluster.engine.residency.executor import ResidencyExecutor

        return ResidencyExecutor(spec)
    if spec.partition == "threads":
        from muxcluster.engine.processes.executor import ProcessExecutor

        return ProcessExecutor(spec)
    if spec.partition == "mps":
        from muxcluster.engine.gpu.mps.launcher import MpsExecutor

        return MpsExecutor(spec)
    if spec.partition == "green":
        from muxcluster.engine.gpu.green.executor import GreenExecutor

        return GreenExecutor(spec)
    from muxcluster.engine.unit.in_process import InProcessExecutor

    return InProcessExecutor(spec)


def _check_ranks(spec: UnitSpec) -> None:
    """Raise ConfigError if the unit cannot be divided over ranks as specified."""
    if spec.partition == "mps":
        message = f"a unit of {spec.tp} ranks shares SMs by green contexts: use 'green' or 'none'"
        raise ConfigError(spec.unit_id, "partition", message)
    if spec.partition == "none" and len(spec.workers) > 1:
        message = f"{len(spec.workers)} workers of {spec.tp} ranks need a partition of their own"
        raise ConfigError(spec.unit_id, "workers", message)
    if spec.partition == "green" and len(spec.workers) > _MOST_APART:
        message = f"{spec.tp} ranks keep the SMs of {_MOST_APART} workers apart, not of more"
        raise ConfigError(spec.unit_id, "workers", message)
    if len(set(spec.rank_devices)) != spec.tp and spec.device != "cpu":
        message = f"{spec.tp} ranks need as many GPUs: {', '.join(spec.rank_devices) or 'none'}"
        raise ConfigError(spec.unit_id, "rank_devices", message)


def _check_moves(spec: UnitSpec) -> None:
    """Raise ConfigError unless models can take turns in memory here."""
    if spec.partition == "threads" and spec.tp == 1:
        return
    what = f"over {spec.tp} ranks" if spec.tp > 1 else f"in partition {spec.partition!r}"
    message = (
        f"models cannot take turns in memory {what}, only in 'threads' on one rank: give every "
        "model residency 'always', in a unit with room for all"
    )
    raise ConfigError(spec.unit_id, "resident_bytes", message)
