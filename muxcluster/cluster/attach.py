"""Operations of the command line on a Ray cluster: join, start a controller, ask it, leave."""

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
from muxcluster.cluster.control.store import clear_state, read_adapters, read_state
from muxcluster.cluster.ray.actor_calls import Method, P, R, ask_and_wait
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

ASK_TIMEOUT_S = 30.0
# Of the first question: a new controller's process imports first, which takes a minute where other
# processes start beside it on few cores.
FIRST_ASK_TIMEOUT_S = 180.0
POLL_S = 0.2
MOST_FAILURES = 3  # failures of a unit after which a command stops waiting for it

Progress = Callable[[dict[str, Any]], None]


@contextmanager
def joined(address: str) -> Iterator[None]:
    """Join the Ray cluster at `address` ("auto": the one recorded on this machine) for the length
    of the block.

    Ray authenticates with the token in its default place, unless RAY_AUTH_MODE says otherwise; set
    here, after Ray was imported, that variable would be read only in part. Raises Unavailable if no
    cluster is there.
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
    """Return the handle of the cluster's controller, created on the head if it is missing.

    Raises Unavailable if it does not answer within `FIRST_ASK_TIMEOUT_S`.
    """
    controller = make_on_head(Controller, CONTROLLER, wiring)
    ask_within(FIRST_ASK_TIMEOUT_S, controller, Controller.desired)
    return controller


def replace_controller(controller: Any, wiring: Wiring) -> Any:
    """Return the handle of a new controller in the place of `controller`, which is ended.

    It goes on with the stored state; streams do not need one meanwhile.

    Raises EngineFailure if this version cannot read that state, and nothing is changed then;
    Unavailable if the new one does not answer.
    """
    read_state()
    read_adapters()
    ray.kill(controller)
    deadline = time.monotonic() + ASK_TIMEOUT_S
    while find_actor(CONTROLLER) is not None:
        if time.monotonic() > deadline:
            raise Unavailable("the old controller does not end")
        time.sleep(POLL_S)
    return start_controller(wiring)


def find_controller() -> Any | None:
    """Return the cluster's controller; None if there is none."""
    return find_actor(CONTROLLER)


def ask(controller: Any, method: Method[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Return the answer to a method of `Controller`. Raises Unavailable where none comes."""
    return ask_within(ASK_TIMEOUT_S, controller, method, *args, **kwargs)


def ask_within(
    timeout_s: float, controller: Any, method: Method[P, R], *args: P.args, **kwargs: P.kwargs
) -> R:
    """As `ask`, with a time limit of its own."""
    try:
        return ask_and_wait(controller, timeout_s, method, *args, **kwargs)
    except (RayError, TimeoutError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise Unavailable(f"the controller does not answer: {lines[-1]}") from error


def ask_status(address: str, timeout_s: float) -> dict[str, Any]:
    """Return the state of the cluster at `address`. Raises Unavailable if none answers."""
    # Ray prints messages of a node that dies meanwhile, but scripts read our output as JSON.
    with contextlib.redirect_stdout(sys.stderr), joined(address):
        controller = find_controller()
        if controller is None:
            raise Unavailable(f"no muxcluster server in the cluster at {address}")
        return ask_within(timeout_s, controller, Controller.status)


def wait_converged(
    controller: Any,
    timeout_s: float,
    tell: Progress = lambda _: None,
    most_failures: int = MOST_FAILURES,
) -> None:
    """Wait until all that was applied runs; `tell` gets the progress repeatedly.

    Raises EngineFailure, saying what hangs, if that takes longer than `timeout_s` seconds or
    something fails repeatedly.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        progress = ask(controller, Controller.progress)
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
    idle = "the ingresses are being replaced" if progress["units"] else "nothing has started"
    what = ", ".join(late) or idle
    return f"not all runs after {timeout_s:g} s: {progress['edge'] or what}"


def stop_everything(timeout_s: float = 60.0) -> None:
    """Stop the controller, every unit and every ingress of the cluster; return when they are gone.

    Units of a controller that no longer exists are stopped too. Raises Unavailable if the cluster
    is lost meanwhile.
    """
    controller = find_controller()
    if controller is not None:
        with contextlib.suppress(Unavailable):  # a hung one is killed, its units ended from here
            ask_within(timeout_s, controller, Controller.stop)
        ray.kill(controller)
    serve.shutdown()
    names = [name for name in unit_names() if name != CONTROLLER]
    asyncio.run(_end(names))
    clear_state()


async def _end(names: Sequence[str]) -> None:
    await asyncio.gather(*(end_unit(name, CLOSE_S) for name in names))
