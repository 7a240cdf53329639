"""Assembles the server for `muxcluster serve` and `up`, and for Serve's `serve deploy`."""

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import ray
from pydantic import BaseModel, ConfigDict, Field
from ray import serve
from ray.serve.schema import ApplicationStatus

from muxcluster.batch.service.settings import BatchSettings
from muxcluster.cluster.control.deployed import controller_deployment
from muxcluster.cluster.ingress.ingress import Replicas, ingress_deployment
from muxcluster.cluster.ingress.key_host import key_settings_of
from muxcluster.cluster.ray.application import APP, SERVE_LOGGING, STAND_IN, raised_line
from muxcluster.cluster.ray.nodes import planning_nodes, ray_nodes
from muxcluster.cluster.state.edge import stand_in_version
from muxcluster.cluster.state.fitting import desired_of
from muxcluster.config.hub import Fetching, Wanted
from muxcluster.config.load import Config, load_config
from muxcluster.config.planner_input import nodes_of
from muxcluster.config.planning import plan_for
from muxcluster.core.errors import ConfigError, EngineFailure
from muxcluster.core.inputs.carried import Carried
from muxcluster.core.inputs.images.rules import ImageLimits
from muxcluster.core.inputs.tls_files import TlsFiles
from muxcluster.core.inputs.web_url import HttpAddress, checked_url
from muxcluster.http.metrics import spans
from muxcluster.http.settings import ApiSettings, ConnectionLimits, QueueLimits, StoreSettings

START_TIMEOUT_S = 120.0  # of ingresses, whose processes start beside others
# Nodes of a cloud take minutes to join, those that pull an image with CUDA libraries more.
JOIN_TIMEOUT_S = 1800.0
POLL_S = 0.1


class ServeArgs(BaseModel):
    """Arguments of `serve run muxcluster.cluster.ingress.serve_app:app config=muxcluster.yaml`.

    host, port, header_timeout_s and the limits of connections do not apply there: Serve's own proxy
    listens, and it reads a request's head whole, however large or late, before the application can
    refuse it. tls and admin are refused.
    """

    model_config = ConfigDict(extra="forbid")

    config: str
    # GPUs that must have joined the cluster before the plan is made: Serve builds an application
    # once, as soon as the head runs.
    wait_for_gpus: Annotated[int, Field(ge=0)] = 0


@dataclass(frozen=True, slots=True)
class Ingresses(Carried):
    """The ingresses that the controller has Serve run: an `Edge`.

    listen: where each ingress itself listens on its node; None leaves HTTP to Serve's proxy.
    is_everywhere: one ingress on each node, else one on the head. version: as `Edge.version`; empty
    for a hash of the other fields, made once: another version of muxcluster may have other fields.
    """

    settings: ApiSettings
    listen: HttpAddress | None
    is_everywhere: bool = True
    version: str = ""

    def __post_init__(self) -> None:
        if not self.version:
            content = repr((self.settings, self.listen, self.is_everywhere))
            version = hashlib.sha256(content.encode()).hexdigest()[:16]
            object.__setattr__(self, "version", version)

    def at(self, address: HttpAddress) -> "Ingresses":
        """Return the same ingresses at another address."""
        return replace(self, listen=address, version="")

    @property
    def listens(self) -> bool:
        """As `Edge.listens`."""
        return self.listen is not None

    @property
    def drain_s(self) -> float:
        """As `Edge.drain_s`."""
        return self.settings.request_timeout_s

    def count(self, num_nodes: int) -> int:
        """As `Edge.count`."""
        return num_nodes if self.is_everywhere else 1

    def deploy(self, controller: Any, num_nodes: int, *, is_beside: bool) -> None:
        """As `Edge.deploy`."""
        self._run(APP, controller, self._replicas(num_nodes, self.version, is_beside=is_beside))

    def stand_in(self, controller: Any, num_nodes: int) -> None:
        """As `Edge.stand_in`."""
        version = stand_in_version(self.version)
        try:
            replicas = self._replicas(num_nodes, version, is_beside=True)
            self._run(STAND_IN, controller, replicas)
        except EngineFailure:
            self.end_stand_in()
            raise

    def has_stand_in(self) -> bool:
        """As `Edge.has_stand_in`."""
        return STAND_IN in serve.status().applications

    def end_stand_in(self) -> None:
        """As `Edge.end_stand_in`."""
        serve.delete(STAND_IN)

    def _replicas(self, num_nodes: int, version: str, *, is_beside: bool) -> Replicas:
        return Replicas(num_nodes, not self.is_everywhere, version, is_beside)

    def _run(self, name: str, controller: Any, replicas: Replicas) -> None:
        """Run them as the application `name`, and wait until they answer. Raises EngineFailure."""
        settings = self.settings
        if self.listen is None:
            # Serve's proxy has set X-Request-Id already.
            settings = replace(settings, request_id_header=False)
        application = ingress_deployment(settings, controller, self.listen, replicas)
        serve.start(http_options={"location": "NoServer"}, logging_config=dict(SERVE_LOGGING))
        prefix = "/" if name == APP else None
        target = serve.RunTarget(application, name=name, route_prefix=prefix)
        # It must not wait for ever for a node that went away since it was counted.
        serve.run_many([target], wait_for_applications_running=False)
        _wait_running(name)


def app(args: ServeArgs) -> Any:
    """Build the application for Serve.

    Raises ConfigError, LoadError, InfeasiblePlan; EngineFailure if the GPUs do not join.
    """
    if args.wait_for_gpus:
        wait_for_gpus(args.wait_for_gpus)
    return build_app(args.config)


def wait_for_gpus(
    least: int, timeout_s: float = JOIN_TIMEOUT_S, sleep: Callable[[float], None] = time.sleep
) -> None:
    """Wait until the living nodes of this Ray cluster have `least` GPUs. Raises EngineFailure."""
    deadline = time.monotonic() + timeout_s
    while (found := sum(node.num_gpus for node in _living())) < least:
        if time.monotonic() > deadline:
            message = f"the cluster has {found} of {least} GPUs after {timeout_s:g} s"
            raise EngineFailure(message)
        sleep(POLL_S)


def build_app(config_path: str | Path) -> Any:
    """Return the application for a configuration file; starts nothing. Raises as `app`.

    If the file lists no nodes and this process is part of a Ray cluster, its nodes are used.
    """
    config = load_config(config_path, Fetching(Wanted.ALL))
    _check_ports(config)
    is_local = not ray.is_initialized()
    nodes = nodes_of(config) if is_local else planning_nodes(config, _living())
    desired = desired_of(config, plan_for(config, nodes), nodes)
    settings = replace(settings_of(config), request_id_header=False)
    return ingress_deployment(settings, controller_deployment(desired))


def _check_ports(config: Config) -> None:
    """Raise ConfigError for what Serve's proxy would leave open without a word."""
    for name in ("tls", "admin"):
        if getattr(config.server, name) is not None:
            message = (
                "Serve's own proxy listens here, which has none: use muxcluster up, or remove it"
            )
            raise ConfigError(config.file, f"server.{name}", message)


def _living() -> list[Any]:
    return [node for node in ray_nodes() if node.is_alive]


def settings_of(config: Config) -> ApiSettings:
    """Return the API settings of the configuration's `server` and `batch` sections.

    Raises ConfigError if the file of the tenants' keys is wrong, or the certificate.
    """
    server, batch = config.server, config.batch
    return ApiSettings(
        api_key=server.api_key,
        max_body_bytes=server.max_body_bytes,
        header_timeout_s=server.header_timeout_s,
        min_body_bytes_per_s=server.min_body_bytes_per_s,
        lenient=server.lenient,
        request_timeout_s=server.request_timeout_s,
        restart_limit_s=server.restart_limit_s,
        queues=QueueLimits(
            server.max_queued,
            server.max_queued_batch,
            server.max_open_requests,
            server.max_buffered_bytes,
        ),
        connections=ConnectionLimits(server.max_connections, server.max_connections_per_address),
        images=ImageLimits(server.max_images, server.max_image_bytes, server.max_image_pixels),
        tls=_tls_of(config),
        admin=None if server.admin is None else HttpAddress(server.admin.host, server.admin.port),
        request_log=server.request_log and str(Path(server.request_log).absolute()),
        audit_log=server.audit_log and str(Path(server.audit_log).absolute()),
        traces=_traces_of(config),
        more_keys=tuple(server.more_keys),
        admin_key=server.admin_key,
        adapter_folders=config.adapter_folders,
        store=_store_of(config),
        keys=key_settings_of(config),
        batch=BatchSettings(
            str(config.batch_directory),
            batch.max_file_bytes,
            batch.max_lines,
            batch.max_line_bytes,
            batch.max_running,
            batch.max_key_bytes,
        ),
    )


def _traces_of(config: Config) -> str | None:
    """Return where spans are sent. Raises ConfigError for what is no URL, or without exporter."""
    endpoint = config.server.otlp_traces_endpoint
    if endpoint is not None:
        where = "server.otlp_traces_endpoint"
        checked_url(endpoint, where)
        spans.check_installed(where)
    return endpoint


def _store_of(config: Config) -> StoreSettings | None:
    store, directory = config.server.store, config.store_directory
    if store is None or directory is None:
        return None
    return StoreSettings(str(directory), store.days, store.max_key_bytes)


def _tls_of(config: Config) -> TlsFiles | None:
    """Return the certificate and key, which are read here once. Raises ConfigError."""
    files = config.tls_files
    if files is not None:
        files.context()
    return files


def ingresses_of(config: Config) -> Ingresses:
    server = config.server
    listen = HttpAddress(server.host, server.port)
    return Ingresses(settings_of(config), listen, server.ingresses == "every-node")


def _wait_running(name: str) -> None:
    """Wait until all ingresses of an application answer. Raises EngineFailure if they do not."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        found = serve.status().applications.get(name)
        if found is not None and found.status is ApplicationStatus.RUNNING:
            return
        is_late = time.monotonic() > deadline
        if is_late or (found is not None and found.status is ApplicationStatus.DEPLOY_FAILED):
            deployments = {} if found is None else found.deployments
            reasons = (raised_line(each.message) for each in deployments.values())
            late = f"they take longer than {START_TIMEOUT_S:g} s"
            raise EngineFailure(next(filter(None, reasons), late))
        time.sleep(POLL_S)
