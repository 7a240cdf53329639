"""Settles partition `auto` of a GPU by what the unit's node supports, where the unit starts."""

import ctypes
import logging
import os
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from typing import Any

from muxcluster.core.errors import EngineFailure
from muxcluster.core.job import WorkerSpec
from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.gpu.gpu_id import gpu_id_of
from muxcluster.engine.gpu.mps.trial import try_mps

logger = logging.getLogger(__name__)

_LIBRARY = "libcuda.so.1"
_GREEN_CALL = "cuGreenCtxStreamCreate"
_PROTOCOL = "msgspec"  # library that worker processes need and a node may lack


def settle_partition(
    spec: UnitSpec,
    try_daemon: Callable[[str], None] = try_mps,
    load_driver: Callable[[str], Any] = ctypes.CDLL,
) -> UnitSpec:
    """Return the unit with a partition that its node supports, and workers that go with it.

    Logs which and why. A unit with another partition than `auto` is returned unchanged. try_daemon:
    starts a daemon for a GPU, runs a client under it and stops both; raises EngineFailure if one of
    them fails.
    """
    if spec.partition != "auto":
        return spec
    if spec.device == "cpu":
        return replace(spec, partition="threads")
    no_mps = _why_no_mps(spec, try_daemon)
    if no_mps is None:
        logger.info(
            "%s: partition mps: an MPS daemon can be had, and lets clients in", spec.unit_id
        )
        return replace(spec, partition="mps")
    no_green = _why_no_green(load_driver)
    if no_green is None:
        logger.info("%s: partition green, for want of MPS: %s", spec.unit_id, no_mps)
        return replace(spec, partition="green")
    logger.info("%s: partition none: %s; %s", spec.unit_id, no_mps, no_green)
    return _unshared(spec)


def _why_no_mps(spec: UnitSpec, try_daemon: Callable[[str], None]) -> str | None:
    if any(model.state_columns for model in spec.models):
        return "models with states run in no process of MPS"
    if spec.tp > 1:
        return f"{spec.tp} ranks share SMs by green contexts alone"
    no_protocol = _why_no_import(_PROTOCOL)
    if no_protocol is not None:
        return f"worker processes need {_PROTOCOL}, {no_protocol}"
    try:
        try_daemon(gpu_id_of(spec.device, os.environ))
    except (EngineFailure, ValueError) as refusal:
        return str(refusal)
    return None


def _why_no_import(module: str) -> str | None:
    """Return why the module cannot be imported, "" if it can."""
    # By trying: a module may be found and yet break, for instance one of another Python.
    try:
        import_module(module)
    except ModuleNotFoundError as missing:
        if missing.name == module:
            return "which is not installed"
        return f"which cannot be imported ({missing})"
    except Exception as error:  # noqa: BLE001 - a broken module may raise anything
        return f"which cannot be imported ({type(error).__name__}: {error})"
    return None


def _why_no_green(load_driver: Callable[[str], Any]) -> str | None:
    try:
        getattr(load_driver(_LIBRARY), _GREEN_CALL)
    except OSError:
        return f"{_LIBRARY} cannot be loaded"
    except AttributeError:
        return f"{_LIBRARY} has no green contexts"
    return None


def _unshared(spec: UnitSpec) -> UnitSpec:
    """Return one worker on the whole GPU; lane `adbs` then becomes `mixed`."""
    lane = "mixed" if spec.scheduler.lane == "adbs" else spec.scheduler.lane
    scheduler = replace(spec.scheduler, lane=lane)
    if spec.tp > 1:
        scheduler = replace(scheduler, pipeline_depth=1)
    return replace(
        spec,
        partition="none",
        workers=(WorkerSpec(0, (1.0,)),),
        scheduler=scheduler,
    )
