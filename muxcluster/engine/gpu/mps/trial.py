"""Tests whether MPS works on a node: a daemon that starts may still refuse its clients."""

import os
import subprocess
import sys

from muxcluster.core.errors import EngineFailure
from muxcluster.engine.gpu.gpu_id import PERCENTAGE
from muxcluster.engine.gpu.mps.control import ControlProgram
from muxcluster.engine.gpu.mps.guarded import GuardedDaemon
from muxcluster.engine.gpu.refusals import CLIENT_LATE, CLIENT_REFUSED, NO_CLIENT

CLIENT_MODULE = "muxcluster.engine.gpu.mps.trial_client"
CLIENT_S = 120.0  # time for a client to import torch, make its context and run an operation
_TRIAL_PERCENTAGE = "50"


def try_mps(gpu_id: str, module: str = CLIENT_MODULE, limit_s: float = CLIENT_S) -> None:
    """Start a daemon for `gpu_id`, run one client under it, and stop both.

    module: the client's program. Raises EngineFailure: why there is no daemon, or how the client
    failed.
    """
    daemon = GuardedDaemon(gpu_id)
    try:
        _run_client({**os.environ, **daemon.environment}, module, limit_s)
        # Where a client cannot connect, CUDA may go on without MPS and without a word.
        if not ControlProgram().ask(daemon.environment, "get_server_list"):
            raise EngineFailure(NO_CLIENT)
    except (OSError, subprocess.SubprocessError) as error:
        raise EngineFailure(CLIENT_REFUSED.format(said=error)) from error
    finally:
        daemon.stop()


def _run_client(environment: dict[str, str], module: str, limit_s: float) -> None:
    """Run the client. Raises EngineFailure if it fails or takes too long."""
    try:
        ended = subprocess.run(
            (sys.executable, "-m", module),
            env={**environment, PERCENTAGE: _TRIAL_PERCENTAGE},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            errors="replace",
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        raise EngineFailure(CLIENT_LATE.format(seconds=limit_s)) from late
    if ended.returncode:
        said = " ".join(ended.stdout.split()) or f"exit status {ended.returncode}"
        raise EngineFailure(CLIENT_REFUSED.format(said=said))
