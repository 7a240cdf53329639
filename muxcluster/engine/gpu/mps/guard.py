"""A small process that holds a unit's MPS daemon, and stops it however the unit ends.

Run as `python -m muxcluster.engine.gpu.mps.guard GPU_ID` by the unit: writes one line of JSON
with the environment that the daemon's clients need, or why there is none, and lives until its
standard input ends or it gets SIGTERM. It imports nothing large. A killed unit closes its end of
the pipe.
"""

import json
import logging
import os
import signal
import sys

from muxcluster.core.errors import EngineFailure
from muxcluster.engine.gpu.mps.control import ControlProgram
from muxcluster.engine.gpu.mps.daemon import MpsDaemon

logger = logging.getLogger(__name__)


def _say(message: dict[str, object]) -> None:
    line = json.dumps(message) + "\n"
    os.write(sys.stdout.fileno(), line.encode())


def _ended(*_: object) -> None:
    raise SystemExit(0)


def main(gpu_id: str) -> int:
    """Hold the daemon; return the exit status."""
    signal.signal(signal.SIGTERM, _ended)
    for ignored in (signal.SIGINT, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)  # the unit decides when we end
    daemon = MpsDaemon(gpu_id, ControlProgram())
    try:
        daemon.start()
        _say({"environment": daemon.clients})
        while os.read(sys.stdin.fileno(), 4096):
            pass
    except EngineFailure as refusal:
        _say({"refusal": str(refusal)})
        return 1
    except BrokenPipeError:
        return 0  # the unit is gone already
    except Exception as error:
        logger.exception("the MPS daemon cannot be had")
        _say({"refusal": f"{type(error).__name__}: {error}"})
        return 1
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        daemon.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
