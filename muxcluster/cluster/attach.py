"""Asks the server in a Ray cluster that runs elsewhere."""

import logging
import os
from typing import Any

import ray
from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException

from muxcluster.cluster.embedded import APP
from muxcluster.core.errors import Unavailable


def ask_status(address: str, timeout_s: float) -> dict[str, Any]:
    """The ingress's status, through Ray at `address` ("auto": the one recorded on this machine).

    A local Ray has token authentication on by default; Ray then takes the token from where it
    keeps it, unless RAY_AUTH_MODE says otherwise.
    Raises Unavailable where no cluster or no server is there.
    """
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RayError, RuntimeError, ValueError) as error:
        raise Unavailable(f"no Ray cluster answers at {address}: {error}") from error
    try:
        handle = serve.get_app_handle(APP)
        state: dict[str, Any] = handle.status.remote().result(timeout_s=timeout_s)
    except (RayError, RayServeException, TimeoutError) as error:
        raise Unavailable(f"no muxcluster server in the cluster at {address}: {error}") from error
    finally:
        ray.shutdown()
    return state
