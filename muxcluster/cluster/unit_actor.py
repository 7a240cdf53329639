"""A unit as a Serve replica: Ray places, watches and restarts it; tokens go past Ray."""

import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from tempfile import TemporaryDirectory
from typing import Any

from ray import serve

from muxcluster.channel.server import UnitServer
from muxcluster.cluster.jobtap import JobTap
from muxcluster.cluster.mesh import mesh_request, on_granted_gpu
from muxcluster.core.errors import EngineFailure
from muxcluster.core.events import TokenDelta
from muxcluster.core.served import JobRecord, UnitState, UnitStats
from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.gpu.choice import settled
from muxcluster.engine.unit import Unit

STALL_S = 30.0
"""A unit whose loop has not turned for this long is restarted (a hung actor is never reported)."""
STALL_REPORT_S = 10.0
"""And from here on it is reported as failed: reports come from another thread than the loop."""


class UnitReplica:
    """Runs one `Unit` behind one zmq endpoint; methods are Ray calls of the controller.

    socket_dir: an existing folder for the endpoint's socket. None: a private one is made.
    Raises LoadError from the constructor where a model cannot be loaded.
    """

    def __init__(self, spec: UnitSpec, socket_dir: str | None = None) -> None:
        self._cleanup = ExitStack()
        spec = settled(on_granted_gpu(spec))
        if socket_dir is None:
            socket_dir = self._cleanup.enter_context(TemporaryDirectory(prefix="muxcluster-"))
        # A fresh name for each start: a client of the dead one must notice and ask again.
        socket = f"{socket_dir}/{spec.unit_id}-{os.getpid()}"
        unit = self._unit = Unit(spec, self._send)
        self._jobs = JobTap(lambda: as_reported(unit.stats(), unit.last_step_age_s()))
        self._server = UnitServer(f"ipc://{socket}", unit.submit, unit.abort, self._jobs.pushed)
        try:
            self._cleanup.callback(unit.close, timeout_s=5.0)
            unit.start()
            self._cleanup.callback(self._server.close)
            self._endpoint = self._server.start()
        except BaseException:
            self._cleanup.close()
            raise

    def endpoint(self) -> str:
        """Where clients connect."""
        return self._endpoint

    def stats(self) -> UnitStats:
        """The state now, without jobs."""
        return self._jobs.peek()

    def timeline(self) -> tuple[JobRecord, ...]:
        """Jobs so far, bounded, oldest first, on the unit's clock."""
        return self._jobs.timeline()

    def check_health(self) -> None:
        """Raises EngineFailure where a loop has stalled or died: Serve restarts the replica."""
        if not self._server.is_alive:
            raise EngineFailure("the unit's server thread has died")
        age = self._unit.last_step_age_s()
        if age > STALL_S:
            raise EngineFailure(f"the unit's loop has not turned for {age:.0f} s")

    def _send(self, deltas: Mapping[str, TokenDelta]) -> None:
        self._server.send(deltas)

    def __del__(self) -> None:
        # Serve's hook at a graceful stop; after a kill the owner sees its pipe's end instead.
        self._cleanup.close()


def as_reported(stats: UnitStats, step_age_s: float) -> UnitStats:
    """`stats` of a unit that made no progress for `step_age_s` seconds: stalled is failed."""
    return replace(stats, state=UnitState.FAILED) if step_age_s > STALL_REPORT_S else stats


def unit_deployment(spec: UnitSpec, socket_dir: str | None = None) -> Any:
    """A bound Serve deployment of one replica, placed as the mesh of `spec`."""
    mesh = mesh_request(spec)
    deployment = serve.deployment(
        UnitReplica,
        name=spec.unit_id,
        num_replicas=1,
        max_ongoing_requests=100,
        ray_actor_options={"num_cpus": mesh.num_cpus, "num_gpus": mesh.num_gpus},
        placement_group_bundles=[dict(bundle) for bundle in mesh.bundles],
        placement_group_strategy="STRICT_PACK",
        health_check_period_s=2.0,
        health_check_timeout_s=10.0,
        graceful_shutdown_wait_loop_s=0.1,
        graceful_shutdown_timeout_s=10.0,
    )
    return deployment.bind(spec, socket_dir)
