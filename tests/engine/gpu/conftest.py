"""The fixtures of tests/engine, and a control program that starts harmless daemons."""

import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.engine.conftest import directories, oracles, tiny

__all__ = ["control", "directories", "oracles", "tiny"]

_PROGRAM = """#!/bin/sh
pid="$CUDA_MPS_PIPE_DIRECTORY/nvidia-cuda-mps-control.pid"
case "$1" in
--daemon) while :; do sleep 0.1; done ;;
-d)
  echo "start" >>"{notes}"
  echo '{words}'
  [ {code} = 0 ] || exit {code}
  "$0" --daemon </dev/null >/dev/null 2>&1 &
  echo $! >"$pid"
  ;;
*)
  read command
  echo "ask $command" >>"{notes}"
  if [ ! -e "$pid" ]; then echo 'Cannot find MPS control daemon process'; exit 1; fi
  case "$command" in
  quit*) [ {deaf} = 1 ] || kill $(cat "$pid") ;;
  get_server_list) printf '%s' '{servers}' ;;
  *) echo 100.0 ;;
  esac
  ;;
esac
"""


@dataclass(frozen=True)
class FakeControl:
    """The program's folder, which is on the PATH, and what it was asked."""

    folder: Path

    def install(
        self, *, code: int = 0, words: str = "", deaf: bool = False, servers: str = "4711"
    ) -> None:
        """code, words: how a start ends. deaf: daemons do not heed `quit`. servers: they have."""
        program = self.folder / "nvidia-cuda-mps-control"
        notes = self.folder / "notes"
        text = _PROGRAM.format(notes=notes, code=code, words=words, deaf=int(deaf), servers=servers)
        program.write_text(text)
        program.chmod(0o755)

    def asked(self) -> list[str]:
        """Starts and questions, in order."""
        file = self.folder / "notes"
        return file.read_text().splitlines() if file.exists() else []


def fake_control(folder: Path, patch: pytest.MonkeyPatch) -> FakeControl:
    """A fake control program on the PATH; locks and pipes lie in `folder` too."""
    for name in ("bin", "tmp"):
        (folder / name).mkdir()
    patch.setenv("PATH", f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}")
    patch.setenv("TMPDIR", str(folder / "tmp"))
    patch.setattr("tempfile.tempdir", None)
    fake = FakeControl(folder / "bin")
    fake.install()
    return fake


@pytest.fixture
def control(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeControl:
    """See `fake_control`; for one test."""
    return fake_control(tmp_path, monkeypatch)
