"""The controller: knows plan, units and endpoints, and answers ingress and CLI."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import ray
from ray import serve

from muxcluster.cluster.status import UnitView, describe
from muxcluster.core.served import JobRecord
from muxcluster.core.unitspec import UnitSpec

CONTROLLER = "controller"
ASK_TIMEOUT_S = 5.0


class Controller:
    """Asks the units' replicas when asked itself, so it has nothing to keep or to lose.

    units: unit id -> Serve handle of its replica.
    """

    def __init__(
        self, specs: Sequence[UnitSpec], plan: Mapping[str, Any], units: Mapping[str, Any]
    ) -> None:
        self._specs = tuple(specs)
        self._plan = plan
        self._units = units

    async def endpoints(self) -> dict[str, str]:
        """Endpoint of each unit that answers now."""
        answers = await asyncio.gather(*(self._ask(spec, "endpoint") for spec in self._specs))
        pairs = zip(self._specs, answers, strict=True)
        return {spec.unit_id: str(answer) for spec, answer in pairs if answer is not None}

    async def status(self) -> dict[str, Any]:
        """Nodes, units, models, SM shares, quotas, rates and health, as JSON values."""
        answers = await asyncio.gather(*(self._ask(spec, "stats") for spec in self._specs))
        views = [UnitView(s, a) for s, a in zip(self._specs, answers, strict=True)]
        state = describe(_nodes(), views, self._plan)
        return {**state, "ray_address": ray.get_runtime_context().gcs_address}

    async def timeline(self) -> dict[str, list[dict[str, Any]]]:
        """Jobs of each unit so far, oldest first (`JobRecord` as JSON values)."""
        answers = await asyncio.gather(*(self._ask(spec, "timeline") for spec in self._specs))
        pairs = zip(self._specs, answers, strict=True)
        return {spec.unit_id: _as_json(jobs or ()) for spec, jobs in pairs}

    async def _ask(self, spec: UnitSpec, method: str) -> Any:
        """The replica's answer; None where it is gone, restarting or silent."""
        call = getattr(self._units[spec.unit_id], method).remote()
        try:
            return await asyncio.wait_for(call, ASK_TIMEOUT_S)
        except (TimeoutError, ray.exceptions.RayError):
            return None


def _as_json(jobs: Sequence[JobRecord]) -> list[dict[str, Any]]:
    return [asdict(job) for job in jobs]


def _nodes() -> list[dict[str, Any]]:
    keys = ("NodeName", "Alive", "Resources")
    return [
        {"name": node[keys[0]], "alive": node[keys[1]], "resources": _metered(node[keys[2]])}
        for node in ray.nodes()
    ]


def _metered(resources: Mapping[str, float]) -> dict[str, float]:
    """CPUs and GPUs only: Ray lists placement groups and addresses as resources too."""
    return {key: value for key, value in resources.items() if key in ("CPU", "GPU")}


def controller_deployment(
    specs: Sequence[UnitSpec], plan: Mapping[str, Any], units: Mapping[str, Any]
) -> Any:
    """A bound Serve deployment of the one controller over bound unit deployments."""
    deployment = serve.deployment(
        Controller,
        name=CONTROLLER,
        num_replicas=1,
        max_ongoing_requests=1000,
        ray_actor_options={"num_cpus": 0.1},
        graceful_shutdown_wait_loop_s=0.1,
        graceful_shutdown_timeout_s=2.0,
    )
    return deployment.bind(tuple(specs), dict(plan), dict(units))
