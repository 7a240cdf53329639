"""Partition `auto` of a GPU: what the unit's node can have, found out where the unit starts."""

import ctypes
import logging
import os
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

from muxcluster.core.errors import EngineFailure
from muxcluster.core.job import WorkerSlot
from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.gpu.card import card_of
from muxcluster.engine.gpu.guarded import GuardedDaemon

logger = logging.getLogger(__name__)

_LIBRARY = "libcuda.so.1"
_GREEN_CALL = "cuGreenCtxStreamCreate"


def settled(
    spec: UnitSpec,
    try_daemon: Callable[[str], None] | None = None,
    load_driver: Callable[[str], Any] = ctypes.CDLL,
) -> UnitSpec:
    """The unit with a partition that its node has, and workers that go with it; logs which and
    why. A unit that does not leave the choice is returned as it is.

    try_daemon: starts and stops a daemon for a card, raises EngineFailure where there is none.
    """
    if spec.partition != "auto":
        return spec
    if spec.device == "cpu":
        return replace(spec, partition="threads")
    no_mps = _why_no_mps(spec, try_daemon or _try_daemon)
    if no_mps is None:
        logger.info("%s: partition mps: an MPS daemon can be had", spec.unit_id)
        return replace(spec, partition="mps")
    no_green = _why_no_green(load_driver)
    if no_green is None:
        logger.info("%s: partition green, for want of MPS: %s", spec.unit_id, no_mps)
        return replace(spec, partition="green")
    logger.info("%s: partition none: %s; %s", spec.unit_id, no_mps, no_green)
    return _unshared(spec)


def _why_no_mps(spec: UnitSpec, try_daemon: Callable[[str], None]) -> str | None:
    if find_spec("msgspec") is None:
        return "worker processes need msgspec, which is not installed"
    try:
        try_daemon(card_of(spec.device, os.environ))
    except (EngineFailure, ValueError) as refusal:
        return str(refusal)
    return None


def _try_daemon(card: str) -> None:
    GuardedDaemon(card).stop()


def _why_no_green(load_driver: Callable[[str], Any]) -> str | None:
    try:
        getattr(load_driver(_LIBRARY), _GREEN_CALL)
    except OSError:
        return f"{_LIBRARY} cannot be loaded"
    except AttributeError:
        return f"{_LIBRARY} has no green contexts"
    return None


def _unshared(spec: UnitSpec) -> UnitSpec:
    """One worker on the whole card; `mixed` is what adbs is then."""
    lane = "mixed" if spec.scheduler.lane == "adbs" else spec.scheduler.lane
    return replace(
        spec,
        partition="none",
        workers=(WorkerSlot(0, (1.0,)),),
        scheduler=replace(spec.scheduler, lane=lane),
    )
