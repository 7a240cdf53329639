"""The unit's end of the process that holds its MPS daemon."""

import json
import subprocess
import sys

from muxcluster.core.errors import EngineFailure

GUARD_MODULE = "muxcluster.engine.gpu.mps.guard"
_STOP_S = 45.0


class GuardedDaemon:
    """A daemon that ends when this process ends, in whatever way."""

    def __init__(self, gpu_id: str) -> None:
        """Block until the daemon runs. Raises EngineFailure with the reason why it does not."""
        self._guard = subprocess.Popen(
            [sys.executable, "-m", GUARD_MODULE, gpu_id],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._guard.stdout is not None, "no pipe"
        line = self._guard.stdout.readline()
        said = json.loads(line) if line else {}
        if "environment" not in said:
            self.stop()
            raise EngineFailure(said.get("refusal", "the process that holds the MPS daemon died"))
        self.environment: dict[str, str] = said["environment"]

    def stop(self) -> None:
        """Stop the daemon; idempotent."""
        for pipe in (self._guard.stdin, self._guard.stdout):
            if pipe is not None:
                pipe.close()
        try:
            self._guard.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._guard.kill()
            self._guard.wait()
