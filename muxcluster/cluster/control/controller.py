"""The controller: stores and applies the desired state, answers ingresses and the command line."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from time import monotonic
from typing import Any

import ray
from ray.exceptions import RayError

from muxcluster import __version__
from muxcluster.channel.curve import new_keys
from muxcluster.cluster.control.adapters import LoadedAdapters
from muxcluster.cluster.control.edge_keeper import EdgeKeeper
from muxcluster.cluster.control.replanner import Replanner
from muxcluster.cluster.control.roster import CLOSE_S, Roster
from muxcluster.cluster.control.routing_table import directory_of
from muxcluster.cluster.control.status import describe, measured_rates
from muxcluster.cluster.control.store import clear_state, read_state, write_state
from muxcluster.cluster.control.what_if import WhatIfPlanner
from muxcluster.cluster.ray.node_watch import NodeWatch
from muxcluster.cluster.ray.privacy import joinable
from muxcluster.cluster.ray.process_logs import log_as
from muxcluster.cluster.state.desired import Desired, Record, State
from muxcluster.cluster.state.edge import Edge
from muxcluster.cluster.state.fitting import as_found
from muxcluster.cluster.state.rates import MeasuredBacklogs
from muxcluster.cluster.state.reconcile import (
    Action,
    ClusterView,
    Drain,
    Limits,
    Resume,
    Start,
    Stop,
    WantedUnit,
    decide,
    is_converged,
)
from muxcluster.cluster.state.what_if import PlanRefusal, plan_told
from muxcluster.cluster.units.actors import BATCHES, KEYS, end_unit, find_actor
from muxcluster.cluster.units.host import UNIT_CLASS
from muxcluster.cluster.units.report import ListenSpec
from muxcluster.core.directory import Directory
from muxcluster.core.inputs.adapters.load import AdapterLoad, AdapterRefusal
from muxcluster.core.served import ServedModel

logger = logging.getLogger(__name__)

TURN_S = 0.2
ASK_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Wiring:
    """How a controller's units are made and reached."""

    # Folder for the units' sockets if everything runs on this machine, which then is every node of
    # a plan. None: units listen on their nodes' addresses.
    socket_dir: str | None = None
    unit_class: str = UNIT_CLASS  # as `UnitHost`'s
    limits: Limits = Limits()


class Controller:
    """Control loop: look at nodes and units, decide (`reconcile`), act. The state is stored in
    Ray's GCS before each action, so that a successor can continue; the data path does not need the
    controller meanwhile.

    Must be created on a running event loop.
    """

    def __init__(self, wiring: Wiring) -> None:
        log_as("controller")
        self._wiring = wiring
        self._state = read_state()
        if self._state.client_key is None and wiring.socket_dir is None:
            self._keep(replace(self._state, client_key=new_keys()))
        key = self._state.client_key
        listen_spec = ListenSpec(wiring.socket_dir, None if key is None else key.public)
        self._roster = Roster(
            self._state.records, listen_spec, self._keep_records, wiring.unit_class
        )
        self._nodes = NodeWatch(is_local=wiring.socket_dir is not None)
        self._edge = EdgeKeeper(self._state.edge_deployed, self._keep_edge)
        self._adapters = LoadedAdapters()
        self._what_if = WhatIfPlanner()
        # On one machine a unit cannot move.
        self._replanner = Replanner(follows_rates=wiring.socket_dir is None)
        if self._state.desired is not None:
            self._replanner.reset(self._state.desired)
        self._backlogs = MeasuredBacklogs()
        self._served: set[str] = set()
        self._is_leaving = False
        self._turns = asyncio.create_task(self._run())

    async def directory(self, known_version: str | None) -> Directory | None:
        """Return the routing table for ingresses; None if they have it, or it is not known yet."""
        desired = self._state.desired
        if desired is None or not self._is_settled():
            return None
        watches, reachable = self._roster.watches, self._nodes.reachable
        found = directory_of(self._state, watches, reachable, self._edge.leaving)
        found = replace(found, models=(*found.models, *self._adapters.served(desired)))
        return None if found.version == known_version else found

    async def desired(self) -> Desired | None:
        """Return the desired state; None before the first `apply`."""
        return self._state.desired

    async def edge(self) -> Edge | None:
        return self._state.edge

    async def version(self) -> str:
        """Return the version of muxcluster in this process."""
        return __version__

    async def note_leaving(self, name: str, version: str, is_over: bool) -> None:
        """As `EdgeKeeper.note_leaving`, for ingresses."""
        self._edge.note_leaving(name, version, is_over=is_over)

    async def apply(self, desired: Desired, edge: Edge | None) -> None:
        """Store the desired state and start to apply it."""
        self.begin(desired, edge)

    def begin(self, desired: Desired, edge: Edge | None) -> None:
        """Like `apply`, for callers in the controller's own process."""
        self._keep(replace(self._state, desired=desired, edge=edge))
        self._replanner.reset(desired)
        self._roster.failures.clear()
        self._edge.forget_failures()

    async def note_backlogs(self, tokens_per_s: Mapping[str, float]) -> None:
        """Note the batch work that the batch service has, by model, for the next plan."""
        self._backlogs.note(tokens_per_s, monotonic())

    async def progress(self) -> dict[str, Any]:
        """Return the progress of the last `apply`: {"converged", "units": [(id, phase, reason)],
        "failures": [text], "edge": text or None, "num_failures": of what fails most often}."""
        view = self._view()
        units = [
            (each.record.name, each.phase.value, each.reason)
            for each in self._roster.views(self._nodes.reachable)
        ]
        failures = [
            f"unit on {mesh.node} GPUs {list(mesh.gpus)}: {failure.reason}"
            for (_, mesh), failure in self._roster.failures.items()
        ]
        if self._replanner.problem is not None:
            failures.append(self._replanner.problem)
        return {
            "converged": self._is_settled()
            and view is not None
            and is_converged(view)
            and self._edge.is_deployed(self._state.edge),
            "units": units,
            "failures": failures,
            "edge": self._edge.problem,
            "num_failures": max(
                [self._edge.num_failures, *(each.count for each in self._roster.failures.values())]
            ),
        }

    async def status(self) -> dict[str, Any]:
        """Return nodes, units, models, SM shares, quotas, rates and health, as JSON values."""
        views = self._roster.views(self._nodes.reachable)
        state = describe(self._nodes.described(), views, self._state.desired)
        return {**state, "ray_address": joinable(ray.get_runtime_context().gcs_address)}

    async def load_adapter(self, asked: AdapterLoad) -> AdapterRefusal | ServedModel:
        """Serve an adapter from now on; return it as it is served."""
        desired = self._state.desired
        if desired is None:
            return AdapterRefusal("the cluster is starting", "model_loading")
        observed = self._roster.observed(self._nodes.reachable)
        units = [(unit.name, unit.models) for unit in observed if unit.serves]
        return await self._adapters.load(asked, desired, units)

    async def unload_adapter(self, name: str) -> AdapterRefusal | None:
        """Serve an adapter no longer."""
        desired = self._state.desired
        if desired is None:
            return AdapterRefusal("the cluster is starting", "model_loading")
        return await self._adapters.unload(name, desired)

    async def plan(self) -> dict[str, Any] | PlanRefusal:
        """Return the plan in force, as `plan_told`."""
        desired = self._state.desired
        if desired is None:
            return PlanRefusal("there is no plan yet", "model_loading")
        return plan_told(desired)

    async def what_if(self, changes: Sequence[str]) -> dict[str, Any] | PlanRefusal:
        """As `WhatIfPlanner.plan`, from the plan in force."""
        return await self._what_if.plan(self._state.desired, changes)

    async def timeline(self) -> dict[str, list[dict[str, Any]]]:
        """Return the jobs of each unit so far, oldest first (`JobRecord` as JSON values)."""
        names = [watch.record.name for watch in self._roster.watches]
        found = await asyncio.gather(*(_timeline(name) for name in names))
        return dict(zip(names, found, strict=True))

    async def stop(self) -> None:
        """Stop all units and the actors on the head, clear the state; return when they are gone."""
        self._is_leaving = True
        self._turns.cancel()
        await end_unit(BATCHES, CLOSE_S)
        await end_unit(KEYS, CLOSE_S)
        await self._roster.stop_all()
        await asyncio.to_thread(clear_state)

    def _keep(self, state: State) -> None:
        write_state(state)
        self._state = state

    def _keep_records(self, records: tuple[Record, ...]) -> None:
        if not self._is_leaving:
            self._keep(replace(self._state, records=records))

    def _keep_edge(self, edge: Edge) -> None:
        if not self._is_leaving:
            self._keep(replace(self._state, edge_deployed=edge))

    def _is_settled(self) -> bool:
        """Return whether all nodes and units were observed since this controller started."""
        return self._nodes.is_known and self._roster.is_known

    async def _run(self) -> None:
        self._nodes.start()
        while True:
            try:
                await self._turn()
            except Exception:
                logger.exception("a turn failed")
            await asyncio.sleep(TURN_S)

    async def _turn(self) -> None:
        desired = self._state.desired
        if desired is None or not self._is_settled():
            return
        self._edge.keep(self._state.edge, self._nodes.num_edges)
        for watch in self._roster.watches:
            if watch.record.node_id in self._nodes.dead:
                self._roster.forget(watch.record.name)
        await self._replan(desired)
        view = self._view()
        for action in () if view is None else decide(view):
            await self._act(action)
        self._roster.drop_old_failures()

    async def _replan(self, desired: Desired) -> None:
        views = self._roster.views(self._nodes.reachable)
        measured = measured_rates([view for view in views if view.is_healthy])
        records = [watch.record for watch in self._roster.watches if not watch.is_stopping]
        usable = self._nodes.usable(desired)
        nodes = as_found(usable, desired.nodes, self._roster.cannot_share())
        backlogs = self._backlogs.now(monotonic())
        found = await self._replanner.next(desired, nodes, records, measured, backlogs)
        if found is not None and self._state.desired is desired:
            self._keep(replace(self._state, desired=found))

    def _view(self) -> ClusterView | None:
        desired = self._state.desired
        if desired is None:
            return None
        names = {target.planned.node for target in desired.targets}
        wanted = [target.wanted for target in desired.targets]
        observed = self._roster.observed(self._nodes.reachable)
        serving = {model for unit in observed if unit.serves for model in unit.models}
        self._served |= serving
        planned = {model for unit in wanted for model in unit.models}
        return ClusterView(
            wanted=wanted,
            observed=observed,
            nodes=frozenset(name for name in names if self._nodes.node_id(name) is not None),
            now_s=monotonic(),
            not_before=self._roster.not_before(),
            limits=self._wiring.limits,
            lost=frozenset((self._served & planned) - serving),
        )

    async def _act(self, action: Action) -> None:
        match action:
            case Start(unit):
                await self._start(unit)
            case Drain(name, limit_s):
                self._roster.drain(name, limit_s)
            case Resume(name):
                self._roster.resume(name)
            case Stop(name, is_broken):
                self._roster.stop(name, is_broken=is_broken)

    async def _start(self, unit: WantedUnit) -> None:
        desired = self._state.desired
        node_id = self._nodes.node_id(unit.mesh.node)
        if desired is None or node_id is None:
            return
        target = next((each for each in desired.targets if each.wanted == unit), None)
        if target is not None:
            serial = self._state.serial + 1
            self._keep(replace(self._state, serial=serial))
            await self._roster.start(target, node_id, f"{target.planned.id}.{serial}")


async def _timeline(name: str) -> list[dict[str, Any]]:
    actor = await asyncio.to_thread(find_actor, name)
    if actor is None:
        return []
    try:
        jobs = await asyncio.wait_for(actor.timeline.remote(), ASK_TIMEOUT_S)
    except (TimeoutError, RayError):
        return []
    return [asdict(job) for job in jobs]
