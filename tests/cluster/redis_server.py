"""A Redis of the system, for Ray's tables; nothing of it is kept."""

import secrets
import shutil
import subprocess
import time
from pathlib import Path
from typing import Self

PROGRAM = "redis-server"
START_TIMEOUT_S = 30.0


def why_no_redis() -> str | None:
    """The reason why there can be no Redis here; None where there can."""
    return None if shutil.which(PROGRAM) else f"{PROGRAM} is not installed (Debian: redis-server)"


class RedisServer:
    """One on 127.0.0.1 from `start` to the end of the `with` block.

    folder: for its files; port: a free one.
    """

    def __init__(self, folder: Path, port: int) -> None:
        self.address = f"127.0.0.1:{port}"
        self.password = secrets.token_hex(16)
        self._log = folder / "redis.log"
        settings = {
            "port": str(port),
            "bind": "127.0.0.1",
            "dir": str(folder),
            "requirepass": self.password,
            "save": '""',
        }
        self._file = folder / "redis.conf"
        self._file.write_text("".join(f"{name} {value}\n" for name, value in settings.items()))
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        """Start it, and wait until it takes connections."""
        with self._log.open("wb") as log:
            self._process = subprocess.Popen([PROGRAM, str(self._file)], stdout=log, stderr=log)
        deadline = time.monotonic() + START_TIMEOUT_S
        while b"Ready to accept connections" not in self._log.read_bytes():
            assert self._process.poll() is None, self._log.read_text()
            assert time.monotonic() < deadline, self._log.read_text()
            time.sleep(0.05)
        return self

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(START_TIMEOUT_S)
