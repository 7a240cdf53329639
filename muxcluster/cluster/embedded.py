"""A Ray cluster inside this process tree: started, used and stopped as a whole."""

import contextlib
import io
import logging
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import ray
from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException

from muxcluster.cluster.attach import (
    Progress,
    ask,
    start_controller,
    stop_everything,
    wait_converged,
)
from muxcluster.cluster.control.controller import Controller, Wiring
from muxcluster.cluster.ray.application import APP, SERVE_LOGGING
from muxcluster.cluster.ray.privacy import keep_token_private, make_token, on_loopback
from muxcluster.cluster.ray.process_logs import VARIABLE
from muxcluster.cluster.ray.server_folder import ServerFolder
from muxcluster.cluster.state.desired import Desired
from muxcluster.cluster.state.edge import Edge
from muxcluster.cluster.units.actors import NAMESPACE
from muxcluster.cluster.units.host import UNIT_CLASS
from muxcluster.core.errors import EngineFailure, Unavailable
from muxcluster.core.inputs.web_url import HttpAddress

START_TIMEOUT_S = 1800.0  # large models load slowly; failures are reported earlier
# Tokens do not pass through Ray's object store, so it may be small.
OBJECT_STORE_BYTES = 128 * 2**20

# Read by Ray's processes at start; values set by the user take precedence.
SERVE_VARIABLES = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # In HAProxy mode a stop would otherwise wait 30 s.
    "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "1",
    "RAY_SERVE_PROXY_MIN_DRAINING_PERIOD_S": "1",
}


class EmbeddedRay:
    """One local Ray with Serve, owned by this process.

    folder: its private folder, removed at the end. Ray's servers listen on 127.0.0.1 only.
    """

    def __init__(self, proxy: HttpAddress | None, num_cpus: float, num_gpus: float) -> None:
        """Start Ray and Serve; if that raises, nothing is left running. Raises EngineFailure.

        proxy: address of Serve's own proxy; None starts no proxy (the ingress listens itself).
        """
        try:
            self.folder = ServerFolder()
        except OSError as error:
            raise EngineFailure(f"no folder can be made for this server: {error}") from error
        try:
            _start(proxy, num_cpus, num_gpus, self.folder)
        except BaseException:
            self.close()
            raise

    @property
    def socket_dir(self) -> str:
        """Folder of the units' sockets."""
        return str(self.folder.path)

    def run(
        self,
        desired: Desired,
        edge: Edge,
        unit_class: str = UNIT_CLASS,
        tell: Progress = lambda _: None,
    ) -> None:
        """Start a controller with the desired state and wait until all of it is ready.

        tell: gets the progress repeatedly. Raises EngineFailure with the reason if something fails.
        """
        try:
            controller = start_controller(Wiring(self.socket_dir, unit_class))
            ask(controller, Controller.apply, desired, edge)
            wait_converged(controller, START_TIMEOUT_S, tell, most_failures=1)
        except Unavailable as error:
            raise EngineFailure(str(error)) from error

    def ask(self, method: str, *args: Any, timeout_s: float = 30.0) -> Any:
        """Call a method of the ingress. Raises EngineFailure if there is no answer."""
        try:
            call = getattr(serve.get_app_handle(APP), method).remote(*args)
            return call.result(timeout_s=timeout_s)
        except (RayError, RayServeException, TimeoutError) as error:
            raise EngineFailure(f"the ingress does not answer: {error}") from error

    def drain(self, timeout_s: float) -> None:
        """Refuse new requests and let open ones end, for at most `timeout_s` seconds."""
        with contextlib.suppress(EngineFailure):  # an ingress that is gone has nothing open
            self.ask("drain", timeout_s, timeout_s=timeout_s + 5.0)

    def end_processes(self) -> None:
        """Stop Serve, then Ray; return when none of their processes is left. Idempotent."""
        with _raylet_silenced():
            if ray.is_initialized():
                stop_everything()
            ray.shutdown()

    def close(self) -> None:
        """Call `end_processes`, then remove the server's folder with its logs. Idempotent."""
        self.end_processes()
        self.folder.close()


def _start(
    proxy: HttpAddress | None, num_cpus: float, num_gpus: float, folder: ServerFolder
) -> None:
    for name, value in SERVE_VARIABLES.items():
        os.environ.setdefault(name, value)
    os.environ[VARIABLE] = str(folder.path)
    make_token()
    # Serve warns if a busy replica answers late, then retries; `ask` reports failures.
    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    with _signals_held(), on_loopback():
        try:
            ray.init(
                address="local",
                namespace=NAMESPACE,
                num_cpus=num_cpus,
                num_gpus=num_gpus or None,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
                object_store_memory=OBJECT_STORE_BYTES,
                _temp_dir=str(folder.ray),
            )
        except Exception as error:  # Ray raises a plain one where its processes start too slowly
            raise EngineFailure(f"Ray does not start: {error}") from error
    keep_token_private()
    serve.start(
        http_options=_http_options(proxy),
        logging_config=dict(SERVE_LOGGING),
    )


def _http_options(proxy: HttpAddress | None) -> dict[str, Any]:
    if proxy is None:
        return {"location": "NoServer"}
    return {"host": proxy.host, "port": proxy.port, "location": "HeadOnly"}


@contextlib.contextmanager
def _signals_held() -> Iterator[None]:
    """Delay SIGINT and SIGTERM until the end of the block, then deliver them to this process's
    handlers.

    If Ray is interrupted while it starts, it leaves agents behind that wait for their head for
    minutes; and it installs a handler that prints a stack trace before the process's own ones.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda got, _: came.append(got)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if came:
        signal.raise_signal(came[0])


@contextlib.contextmanager
def _raylet_silenced() -> Iterator[None]:
    """Suppress a false alarm that Ray prints when Serve's own actors are stopped."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield
