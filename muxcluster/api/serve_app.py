"""The whole server as one Serve application: for `muxcluster serve` and for `serve deploy`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from muxcluster.api.ingress import Routes, ingress_deployment
from muxcluster.api.settings import ApiSettings, QueueLimits
from muxcluster.cluster.controller import controller_deployment
from muxcluster.cluster.embedded import HttpAddress
from muxcluster.cluster.unit_actor import unit_deployment
from muxcluster.config import load_config, plan_for, served_models, unit_specs
from muxcluster.config.schema import ServerSection
from muxcluster.core.served import ServedModel
from muxcluster.core.unitspec import UnitSpec


class ServeArgs(BaseModel):
    """Arguments of `serve run muxcluster.api.serve_app:app config=muxcluster.yaml`.

    host and port of the file do not apply there: Serve's own proxy listens.
    """

    model_config = ConfigDict(extra="forbid")

    config: str


@dataclass(frozen=True, slots=True)
class Wiring:
    """How the application's parts reach each other and the world.

    socket_dir: as `UnitReplica`'s. listen: where the ingress itself listens; None leaves HTTP to
    Serve's proxy. make_unit: makes a unit's bound deployment from its specification and
    `socket_dir`.
    """

    socket_dir: str | None = None
    listen: HttpAddress | None = None
    make_unit: Callable[[UnitSpec, str | None], Any] = unit_deployment


def app(args: ServeArgs) -> Any:
    """Serve's application builder. Raises ConfigError, LoadError, InfeasiblePlan."""
    return build_app(args.config)


def build_app(config_path: str | Path) -> Any:
    """The application for a configuration file; nothing is started. Raises as `app`."""
    config = load_config(config_path)
    plan = plan_for(config)
    specs = unit_specs(config, plan)
    settings = settings_of(config.server)
    return assemble(specs, served_models(config), settings, plan.model_dump(mode="json"))


def settings_of(server: ServerSection) -> ApiSettings:
    """The edge's settings out of the configuration's `server` section."""
    return ApiSettings(
        api_key=server.api_key,
        max_body_bytes=server.max_body_bytes,
        lenient=server.lenient,
        request_timeout_s=server.request_timeout_s,
        restart_limit_s=server.restart_limit_s,
        queues=QueueLimits(
            server.max_queued,
            server.max_queued_batch,
            server.max_open_requests,
            server.max_buffered_bytes,
        ),
        request_log=server.request_log and str(Path(server.request_log).absolute()),
    )


def assemble(
    specs: Sequence[UnitSpec],
    models: Sequence[ServedModel],
    settings: ApiSettings,
    plan: Mapping[str, Any] | None = None,
    wiring: Wiring | None = None,
) -> Any:
    """Units, controller and ingress, bound to each other."""
    wiring = wiring or Wiring()
    units = {spec.unit_id: wiring.make_unit(spec, wiring.socket_dir) for spec in specs}
    controller = controller_deployment(specs, plan or {}, units)
    routes = Routes(tuple(models), _units_of(specs))
    if wiring.listen is None:
        # Serve's proxy has set X-Request-Id already.
        settings = replace(settings, request_id_header=False)
    return ingress_deployment(routes, settings, controller, wiring.listen)


def _units_of(specs: Sequence[UnitSpec]) -> dict[str, tuple[str, ...]]:
    """Model name -> ids of the units that serve it."""
    units_of: dict[str, tuple[str, ...]] = {}
    for spec in specs:
        for model in spec.models:
            units_of[model.name] = (*units_of.get(model.name, ()), spec.unit_id)
    return units_of
