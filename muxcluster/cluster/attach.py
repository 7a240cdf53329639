"""A Ray cluster as the command line sees it: joined, given a controller, asked, and left."""

import asyncio
import contextlib
import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import ray
from ray import serve
from ray.exceptions import RayError

from muxcluster.cluster.control.controller import Controller, Wiring
from muxcluster.cluster.control.roster import CLOSE_S
from muxcluster.cluster.control.store import clear_state
from muxcluster.cluster.ray.privacy import found, keep_token_private
from muxcluster.cluster.units.actors import (
    CONTROLLER,
    NAMESPACE,
    end_unit,
    find_actor,
    make_on_head,
    unit_names,
)
from muxcluster.core.errors import EngineFailure, Unavailable

POLL_S = 0.2
MOST_FAILURES = 3  # Times that a unit may fail before a command gives up waiting for it

Progress = Callable[[dict[str, Any]], None]


@contextmanager
def joined(address: str) -> Iterator[None]:
    """This process is part of the Ray cluster at `address` ("auto": the one recorded on this
    machine) for the length of the block.

    Ray authenticates with the token that it finds where it keeps it, unless RAY_AUTH_MODE says
    otherwise; set here, where Ray is imported already, it would be read by halves and fail.
    Raises Unavailable where no cluster is there.
    """
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    keep_token_private()
    try:
        ray.init(
            address=found(address),
            namespace=NAMESPACE,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    except (ConnectionError, RayError, RuntimeError, ValueError) as error:
        raise Unavailable(f"no Ray cluster answers at {address}: {error}") from error
    try:
        yield
    finally:
        ray.shutdown()


def start_controller(wiring: Wiring) -> Any:
    """The handle of the cluster's one controller, which is made on the head where it is missing."""
    return make_on_head(Controller, CONTROLLER, wiring)


def find_controller() -> Any | None:
    """The cluster's controller; None where there is none."""
    return find_actor(CONTROLLER)


def ask(controller: Any, method: str, *args: Any, timeout_s: float = 30.0) -> Any:
    """The controller's answer. Raises Unavailable where it does not come."""
    try:
        return ray.get(getattr(controller, method).remote(*args), timeout=timeout_s)
    except (RayError, TimeoutError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise Unavailable(f"the controller does not answer: {lines[-1]}") from error


def ask_status(address: str, timeout_s: float) -> dict[str, Any]:
    """The state of the cluster at `address`. Raises Unavailable where none answers."""
    # Ray prints a node's last words where one dies meanwhile; a script reads our output as JSON.
    with contextlib.redirect_stdout(sys.stderr), joined(address):
        controller = find_controller()
        if controller is None:
            raise Unavailable(f"no muxcluster server in the cluster at {address}")
        state: dict[str, Any] = ask(controller, "status", timeout_s=timeout_s)
    return state


def wait_converged(
    controller: Any,
    timeout_s: float,
    tell: Progress = lambda _: None,
    most_failures: int = MOST_FAILURES,
) -> None:
    """Until all that was applied runs; `tell` gets the progress again and again.

    Raises EngineFailure, saying what hangs, where that takes longer than `timeout_s` seconds or
    something fails again and again.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        progress = ask(controller, "progress")
        tell(progress)
        if progress["converged"]:
            return
        if progress["num_failures"] >= most_failures or time.monotonic() > deadline:
            raise EngineFailure(_hanging(progress, timeout_s))
        time.sleep(POLL_S)


def _hanging(progress: dict[str, Any], timeout_s: float) -> str:
    if progress["failures"]:
        return "; ".join(progress["failures"])
    late = [f"{name} is {phase}" for name, phase, _ in progress["units"] if phase != "ready"]
    what = ", ".join(late) or "nothing has started"
    return f"not all runs after {timeout_s:g} s: {progress['edge'] or what}"


def stop_everything(timeout_s: float = 60.0) -> None:
    """Ends the controller, every unit and every ingress of the cluster; returns when they are gone.

    What a controller that is gone has left is ended too. Raises Unavailable where the cluster goes
    away meanwhile.
    """
    controller = find_controller()
    if controller is not None:
        with contextlib.suppress(Unavailable):  # a hung one is killed, its units ended from here
            ask(controller, "stop", timeout_s=timeout_s)
        ray.kill(controller)
    serve.shutdown()
    names = [name for name in unit_names() if name != CONTROLLER]
    asyncio.run(_end(names))
    clear_state()


async def _end(names: Sequence[str]) -> None:
    await asyncio.gather(*(end_unit(name, CLOSE_S) for name in names))
