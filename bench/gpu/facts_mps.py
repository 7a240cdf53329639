"""Facts about MPS: our own daemon, the share of each process, and IPC between its clients."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from bench.gpu.answer import Answer
from bench.gpu.children import run_child
from bench.gpu.probe import Probe, Products

_SCRIPT = str(Path(__file__).resolve().parent / "fact.py")
_CONTROL = "nvidia-cuda-mps-control"
_SHARE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
_PERCENTAGES = (100, 50, 25)
_CLIENT_S = 40.0


class NoDaemon(Exception):
    """The daemon is missing or does not start; the text says which."""


def mps() -> Answer:
    """Starts a daemon, runs clients at three shares, then two at once, then IPC; stops it."""
    # Ended early, the daemon must be stopped all the same.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended while clients ran"))
    try:
        with _daemon() as environment:
            return _clients(environment)
    except NoDaemon as failure:
        return Answer("no", str(failure))


def client() -> Answer:
    """What one process sees of the card: run by `mps` with its share in the environment."""
    count = torch.cuda.get_device_properties(0).multi_processor_count
    seen = len(Probe().run())
    rate = Products().rate_over(2.0)
    return Answer("measured", "", {"attribute": count, "seen": seen, "flops_per_s": rate})


def _clients(environment: dict[str, str]) -> Answer:
    alone = {share: _client(environment, share) for share in _PERCENTAGES}
    servers = _ask(environment, "get_server_list")
    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(lambda share: _client(environment, share), (50, 50)))
    shared = _child(environment, "ipc")
    numbers = {"alone": alone, "together": together, "ipc": shared, "servers": servers}
    texts = ["the daemon starts in our own pipe directory", f"servers: {servers or 'none'}"]
    texts += [f"{share} %: {_sentence(found)}" for share, found in alone.items()]
    texts += [f"beside another at 50 %: {_sentence(found)}" for found in together]
    texts.append(f"IPC between two clients: {shared.get('text') or shared.get('failure')}")
    seen = [alone[share].get("numbers", {}).get("seen", 0) for share in _PERCENTAGES]
    works = bool(servers) and seen[0] > seen[1] > seen[2] > 0
    return Answer("yes" if works else "no", "; ".join(texts), numbers)


def _sentence(found: dict[str, Any]) -> str:
    if "failure" in found:
        return str(found["failure"])
    numbers = found["numbers"]
    return (
        f"multiprocessor attribute {numbers['attribute']}, work seen on {numbers['seen']}, "
        f"{numbers['flops_per_s'] / 1e12:.0f} TFLOP/s"
    )


def _client(environment: dict[str, str], share: int) -> dict[str, Any]:
    return _child({**environment, _SHARE: str(share)}, "mps-client")


def _child(environment: dict[str, str], name: str) -> dict[str, Any]:
    ended = run_child((_SCRIPT, name), _CLIENT_S, environment)
    if ended.failure:
        return {"failure": ended.failure[-400:]}
    found: dict[str, Any] = json.loads(ended.output.splitlines()[-1])
    return found


@contextmanager
def _daemon() -> Iterator[dict[str, str]]:
    """A daemon of our own while the block runs; yields the environment of its clients.

    No setting of the card is read or written.
    """
    if shutil.which(_CONTROL) is None:
        raise NoDaemon(f"{_CONTROL} is not installed")
    with tempfile.TemporaryDirectory(prefix="mps") as folder:
        pipe, log = Path(folder, "pipe"), Path(folder, "log")
        for each in (pipe, log):
            each.mkdir()
        environment = {
            "CUDA_MPS_PIPE_DIRECTORY": str(pipe),
            "CUDA_MPS_LOG_DIRECTORY": str(log),
        }
        # A file, not a pipe: the daemon may keep it open as long as it runs.
        with Path(log, "start.log").open("w") as said:
            started = subprocess.run(
                (_CONTROL, "-d"),
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                timeout=20,
                check=False,
            )
        try:
            if started.returncode:
                raise NoDaemon(f"{_CONTROL} -d: exit code {started.returncode}: {_log(log)}")
            yield environment
        finally:
            _stop(environment, pipe)


def _stop(environment: dict[str, str], pipe: Path) -> None:
    """Ask the daemon to end; if it cannot be asked, end the process that it says it is."""
    try:
        _ask(environment, "quit -t 5")
    except (OSError, subprocess.SubprocessError):
        with suppress(OSError, ValueError):
            number = (pipe / f"{_CONTROL}.pid").read_text(encoding="ascii")
            os.kill(int(number), signal.SIGTERM)


def _ask(environment: dict[str, str], command: str) -> str:
    """What the daemon answers."""
    done = subprocess.run(
        (_CONTROL,),
        env={**os.environ, **environment},
        input=f"{command}\n",
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    return (done.stdout + done.stderr).strip()


def _log(folder: Path) -> str:
    """The end of what the daemon logged."""
    parts = [file.read_text(errors="replace")[-400:] for file in sorted(folder.glob("*.log"))]
    return " ".join(" ".join(parts).split())


CHECKS = {"mps": mps, "mps-client": client}
