"""The whole server on an embedded local Ray, after all checks of its configuration."""

import math
import os
import socket
import ssl
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from muxcluster.cluster.attach import Progress
from muxcluster.cluster.embedded import EmbeddedRay
from muxcluster.cluster.ingress.serve_app import Ingresses, ingresses_of
from muxcluster.cluster.ray.process_logs import LogFollower
from muxcluster.cluster.state.desired import Desired
from muxcluster.cluster.state.fitting import desired_of
from muxcluster.cluster.units.mesh import UNIT_CPUS
from muxcluster.config.load import Config
from muxcluster.config.planner_input import nodes_of
from muxcluster.config.planning import plan_for
from muxcluster.core.errors import ConfigError, EngineFailure
from muxcluster.core.inputs.log_lines import LOG_FORMAT
from muxcluster.core.inputs.web_url import HttpAddress
from muxcluster.core.served import ServedModel
from muxcluster.engine.load.weights import check_weight_files
from muxcluster.http.calls.model_text import ModelTexts
from muxcluster.text.rendering.pool import RenderPool

READY_TIMEOUT_S = 60.0
OTHER_CPUS = 0.5  # Logical CPUs of ingress, controller and what Serve adds; Ray meters no threads


@dataclass(frozen=True, slots=True)
class Prepared:
    """A configuration that has passed every check that needs no running process."""

    desired: Desired
    edge: Ingresses

    @property
    def models(self) -> tuple[ServedModel, ...]:
        return self.desired.models

    @property
    def address(self) -> HttpAddress:
        """Address of the ingress; those made here always have one."""
        assert self.edge.listen is not None
        return self.edge.listen

    @property
    def url(self) -> str:
        """URL of the ingress for a client on this machine."""
        return url_of(self.address, is_tls=self.edge.settings.tls is not None)

    def listening(self, address: HttpAddress) -> "Prepared":
        """Return the same configuration at another address."""
        return replace(self, edge=self.edge.at(address))


def prepare(config: Config) -> Prepared:
    """Plan, and check everything. Raises ConfigError, LoadError, InfeasiblePlan."""
    nodes = nodes_of(config)
    desired = desired_of(config, plan_for(config, nodes), nodes)
    check_models(desired)
    return Prepared(desired, ingresses_of(config))


def check_models(desired: Desired) -> None:
    """Check that weights and tokenizers are readable on this machine. Raises LoadError."""
    for model in (model for target in desired.targets for model in target.spec.models):
        if model.load_format != "dummy":
            check_weight_files(Path(model.path))
    with RenderPool() as pool:
        ModelTexts.load(desired.models, pool)


def free_address(wanted: HttpAddress) -> HttpAddress:
    """Return `wanted`, with a free port for 0. Raises ConfigError if it is taken."""
    host, port = wanted.host, wanted.port
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ConfigError(f"{host}:{port}", "", f"cannot listen: {error.strerror}") from error
        except (ValueError, TypeError, OverflowError) as error:
            raise ConfigError(f"{host:.80}:{port}", "", f"cannot listen: {error}") from error
        return HttpAddress(host, probe.getsockname()[1])


def url_of(address: HttpAddress, *, is_tls: bool = False) -> str:
    """Return the server's URL for a client on this machine."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address.host, address.host)
    shown = f"[{host}]" if ":" in host else host
    return f"{'https' if is_tls else 'http'}://{shown}:{address.port}"


@contextmanager
def serving(
    prepared: Prepared,
    show_log: Callable[[str], None] | None = None,
    show_progress: Progress = lambda _: None,
) -> Iterator[EmbeddedRay]:
    """Run the server until the block ends; then none of its processes is left.

    show_log: gets the log lines of units and controller, from a thread of its own. show_progress:
    gets the controller's progress while units start. Raises EngineFailure if it does not come up.
    """
    # Units limit their own threads; a library's pool in each Ray process would compete with them.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if prepared.desired.config.server.log_format == "json":
        os.environ[LOG_FORMAT] = "json"
    targets = prepared.desired.targets
    # Ray starts an idle worker for each declared CPU, so few are declared.
    num_cpus = math.ceil(OTHER_CPUS + UNIT_CPUS * len(targets))
    # The ingress replica listens itself. On 2 cores, before any tuning, 32 streams got 2,900 events
    # a second through Serve's proxy, 6,500 through its HAProxy mode and 13,500 this way, and the
    # first token took 9.3, 3.4 and 2.3 ms (bench/http.py). `serve deploy` keeps the proxy.
    cluster = EmbeddedRay(None, num_cpus, sum(target.num_gpus for target in targets))
    follower = None if show_log is None else LogFollower(cluster.folder.logs, show_log)
    try:
        cluster.run(prepared.desired, prepared.edge, tell=show_progress)
        wait_ready(prepared.url)
        yield cluster
    finally:
        cluster.end_processes()
        if follower is not None:
            follower.close()
        cluster.close()


def wait_ready(url: str) -> None:
    """Wait until the server at `url` is ready. Raises EngineFailure after a minute."""
    deadline = time.monotonic() + READY_TIMEOUT_S
    while not _answers(f"{url}/ready"):
        if time.monotonic() > deadline:
            raise EngineFailure(f"{url}/ready did not answer within {READY_TIMEOUT_S:g} s")
        time.sleep(0.1)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5.0, context=_trusting(url)) as answer:
            return bool(answer.status == 200)
    except OSError:  # refused, 503, timed out: not yet
        return False


def _trusting(url: str) -> ssl.SSLContext | None:
    """Return a context that asks for no certificate: it has the name that clients use, and this
    process asks its own server by an address."""
    if not url.startswith("https:"):
        return None
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
