"""A unit as a Ray actor: Ray places and restarts its process; tokens do not pass through Ray."""

import logging
import os
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pkgutil import resolve_name

from ray.util import get_node_ip_address

from muxcluster.channel.curve import Door
from muxcluster.channel.server import UnitCalls, UnitServer
from muxcluster.cluster.state.reconcile import Phase
from muxcluster.cluster.units.job_tap import JobTap
from muxcluster.cluster.units.mesh import on_granted_gpu
from muxcluster.cluster.units.report import ListenSpec, UnitReport
from muxcluster.core.directory import UnitAddress
from muxcluster.core.errors import EngineFailure, MuxClusterError
from muxcluster.core.events import TokenDelta
from muxcluster.core.inputs.adapters.load import AdapterCheck
from muxcluster.core.served import JobRecord, UnitState, UnitStats
from muxcluster.core.unitspec import ModelSpec, UnitSpec
from muxcluster.engine.unit.partition_choice import settle_partition
from muxcluster.engine.unit.unit import Unit
from muxcluster.offline.process.side import SideProcess

logger = logging.getLogger(__name__)

# A unit is replaced if its loop made no progress for this long (a hung loop ends no process).
STALL_S = 30.0
# It is reported as failed from here on; reports come from another thread than the loop.
STALL_REPORT_S = 10.0
CLOSE_S = 5.0
# Imports torch and transformers, seconds and 400 MB that a unit's process does without.
_CHECK_ADAPTER = "muxcluster.engine.unit.adapter_checks:check_adapter"


class UnitReplica:
    """Run one `Unit` behind one zmq endpoint; methods are Ray calls of the controller.

    Loading runs in the background, so that a loading unit still answers and differs from a hung
    one.
    """

    def __init__(self, spec: UnitSpec, listen_spec: ListenSpec) -> None:
        self._spec = spec
        self._listen_spec = listen_spec
        self._lock = threading.Lock()
        self._cleanup = ExitStack()
        self._unit: Unit | None = None
        self._server: UnitServer | None = None
        self._jobs: JobTap | None = None
        self._address: UnitAddress | None = None
        self._reason: str | None = None
        self._partition: str | None = None
        self._is_closed = False
        self._checks = SideProcess()
        self._cleanup.callback(self._checks.close)
        threading.Thread(target=self._load, name="loader", daemon=True).start()

    def report(self) -> UnitReport:
        """Return the current state, without jobs."""
        reason = self._reason or self._trouble()
        partition = self._partition
        if reason is not None:
            return UnitReport(Phase.FAILED, reason, partition=partition)
        if self._jobs is None or self._address is None:
            return UnitReport(Phase.LOADING, partition=partition)
        return UnitReport(Phase.READY, None, self._address, self._jobs.peek(), partition)

    def timeline(self) -> tuple[JobRecord, ...]:
        """Return the jobs so far (a bounded number), oldest first, on the unit's clock."""
        return () if self._jobs is None else self._jobs.timeline()

    def check_adapter(self, model: str, path: str) -> AdapterCheck:
        """Return whether a model of the unit can take the adapter in `path` on this node."""
        spec = next(each for each in self._spec.models if each.name == model)
        return self._checks.call(_checked, spec, path)

    def close(self) -> None:
        """Stop the unit's processes; its clients lose the connection. Idempotent."""
        with self._lock:
            self._is_closed = True
            self._cleanup.close()

    def _load(self) -> None:
        try:
            with self._lock:
                if not self._is_closed:
                    self._start()
        except MuxClusterError as error:
            self._reason = str(error)
        except Exception as error:
            logger.exception("%s does not start", self._spec.unit_id)
            self._reason = f"{type(error).__name__}: {error}"
        if self._reason is not None:
            self._cleanup.close()

    def _start(self) -> None:
        spec = settle_partition(on_granted_gpu(self._spec))
        self._partition = spec.partition
        unit = self._unit = Unit(spec, self._send)
        self._cleanup.callback(unit.close, timeout_s=CLOSE_S)
        unit.start()
        jobs = JobTap(lambda: as_reported(unit.stats(), unit.last_step_age_s()))
        calls = UnitCalls(unit.submit, unit.abort, jobs.pushed, unit.feed, unit.request_move)
        server = self._server = UnitServer(self._door(), calls)
        self._cleanup.callback(server.close)
        endpoint = server.start()
        self._address = UnitAddress(self._spec.unit_id, endpoint, server.server_key)
        self._jobs = jobs

    def _door(self) -> Door:
        # A new name for each start, so that clients of the old process notice and ask again.
        folder = self._listen_spec.socket_dir
        if folder is not None:
            return Door(f"ipc://{folder}/{self._spec.unit_id}-{os.getpid()}")
        if self._listen_spec.client_key is None:
            raise EngineFailure("a unit on the network needs a key that its clients have")
        return Door(f"tcp://{get_node_ip_address()}:*", self._listen_spec.client_key)

    def _trouble(self) -> str | None:
        if self._jobs is None or self._unit is None or self._server is None:
            return None
        if not self._server.is_alive:
            return "the unit's server thread has died"
        age = self._unit.last_step_age_s()
        return f"the unit's loop has not turned for {age:.0f} s" if age > STALL_S else None

    def _send(self, deltas: Mapping[str, TokenDelta]) -> None:
        if self._server is not None:
            self._server.send(deltas)


def _checked(spec: ModelSpec, path: str) -> AdapterCheck:
    """Check an adapter, in the process at the unit's side."""
    found: AdapterCheck = resolve_name(_CHECK_ADAPTER)(spec, path)
    return found


def as_reported(stats: UnitStats, step_age_s: float) -> UnitStats:
    """Return `stats`, as failed if the unit made no progress for too long (`step_age_s`)."""
    return replace(stats, state=UnitState.FAILED) if step_age_s > STALL_REPORT_S else stats
