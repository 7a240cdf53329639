"""Starts MPS daemons and sends them commands with nvidia-cuda-mps-control."""

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

CONTROL = "nvidia-cuda-mps-control"
_ANSWER_S = 20.0


class DaemonControl(Protocol):
    """Starts a daemon and sends it commands; `environment` names its folders and extends ours."""

    def is_installed(self) -> bool: ...

    def start(self, environment: Mapping[str, str], said: Path) -> int:
        """Start a daemon in the background; return the exit code. said: file for its messages."""
        ...

    def ask(self, environment: Mapping[str, str], command: str) -> str:
        """Return the daemon's answer. Raises OSError, or TimeoutExpired if there is none."""
        ...


class ControlProgram:
    """The program on the PATH. It reads and writes no setting of the GPU."""

    def is_installed(self) -> bool:
        return shutil.which(CONTROL) is not None

    def start(self, environment: Mapping[str, str], said: Path) -> int:
        # A file, not a pipe: the daemon may keep it open as long as it runs.
        with said.open("w", encoding="utf-8") as output:
            started = subprocess.run(
                (CONTROL, "-d"),
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                timeout=_ANSWER_S,
                check=False,
            )
        return started.returncode

    def ask(self, environment: Mapping[str, str], command: str) -> str:
        done = subprocess.run(
            (CONTROL,),
            env={**os.environ, **environment},
            input=f"{command}\n",
            capture_output=True,
            text=True,
            timeout=_ANSWER_S,
            check=False,
        )
        return (done.stdout + done.stderr).strip()
