"""The whole server as one Serve application: for `muxcluster serve` and for `serve deploy`."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from muxcluster.api.ingress import Routes, ingress_deployment
from muxcluster.api.settings import ApiSettings
from muxcluster.cluster.controller import controller_deployment
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
    )


def assemble(
    specs: Sequence[UnitSpec],
    models: Sequence[ServedModel],
    settings: ApiSettings,
    plan: Mapping[str, Any] | None = None,
    socket_dir: str | None = None,
) -> Any:
    """Units, controller and ingress, bound to each other.

    socket_dir: as `UnitReplica`'s. A model in several units is routed to the first of them.
    """
    units = {spec.unit_id: unit_deployment(spec, socket_dir) for spec in specs}
    controller = controller_deployment(specs, plan or {}, units)
    unit_of = {model.name: spec.unit_id for spec in reversed(specs) for model in spec.models}
    routes = Routes(tuple(models), unit_of)
    # Serve's proxy has set X-Request-Id already.
    return ingress_deployment(routes, replace(settings, request_id_header=False), controller)
