"""Facts about MPS: our own daemon, the share of each process, and IPC between its clients."""

import json
import os
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from bench.gpu.fact_checks.answer import Answer
from bench.gpu.fact_checks.probe import Probe, Products
from bench.gpu.running.children import run_child
from muxcluster.core.errors import EngineFailure
from muxcluster.engine.gpu.gpu_id import PERCENTAGE, gpu_id_of
from muxcluster.engine.gpu.mps.control import ControlProgram
from muxcluster.engine.gpu.mps.daemon import MpsDaemon

_SCRIPT = str(Path(__file__).resolve().parent / "fact.py")
_CONTROL = ControlProgram()
_PERCENTAGES = (100, 50, 25)
_CLIENT_S = 40.0


def mps() -> Iterator[Answer]:
    """Starts a daemon, runs clients at three shares, then two at once, then IPC; stops it.

    Yields the answer so far: the verdict is known after the clients that run alone.
    """
    # Ended early, the daemon must be stopped all the same.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended while clients ran"))
    try:
        with _daemon() as environment:
            yield from _clients(environment)
    except EngineFailure as failure:
        yield Answer("no", str(failure))


def client() -> Answer:
    """What one process sees of the card: run by `mps` with its share in the environment."""
    count = torch.cuda.get_device_properties(0).multi_processor_count
    seen = len(Probe().run())
    rate = Products().rate_over(2.0)
    return Answer("measured", "", {"attribute": count, "seen": seen, "flops_per_s": rate})


def _clients(environment: dict[str, str]) -> Iterator[Answer]:
    alone = {share: _client(environment, share) for share in _PERCENTAGES}
    servers = _CONTROL.ask(environment, "get_server_list")
    seen = [alone[share].get("numbers", {}).get("seen", 0) for share in _PERCENTAGES]
    works = bool(servers) and seen[0] > seen[1] > seen[2] > 0
    verdict = "yes" if works else "no"
    numbers: dict[str, Any] = {"alone": alone, "servers": servers}
    texts = ["the daemon starts in our own pipe directory", f"servers: {servers or 'none'}"]
    texts += [f"{share} %: {_sentence(found)}" for share, found in alone.items()]
    yield Answer(verdict, "; ".join(texts), numbers)
    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(lambda share: _client(environment, share), (50, 50)))
    numbers["together"] = together
    texts += [f"beside another at 50 %: {_sentence(found)}" for found in together]
    yield Answer(verdict, "; ".join(texts), numbers)
    shared = numbers["ipc"] = _child(environment, "ipc")
    texts.append(f"IPC between two clients: {shared.get('text') or shared.get('failure')}")
    yield Answer(verdict, "; ".join(texts), numbers)


def _sentence(found: dict[str, Any]) -> str:
    if "failure" in found:
        return str(found["failure"])
    numbers = found["numbers"]
    return (
        f"multiprocessor attribute {numbers['attribute']}, work seen on {numbers['seen']}, "
        f"{numbers['flops_per_s'] / 1e12:.0f} TFLOP/s"
    )


def _client(environment: dict[str, str], share: int) -> dict[str, Any]:
    return _child({**environment, PERCENTAGE: str(share)}, "mps-client")


def _child(environment: dict[str, str], name: str) -> dict[str, Any]:
    ended = run_child((_SCRIPT, name), _CLIENT_S, environment)
    if ended.failure:
        return {"failure": ended.failure[-400:]}
    found: dict[str, Any] = json.loads(ended.output.splitlines()[-1])
    return found


@contextmanager
def _daemon() -> Iterator[dict[str, str]]:
    """A daemon of our own while the block runs; yields the environment of its clients.

    No setting of the card is read or written. Raises EngineFailure: why there is no daemon.
    """
    daemon = MpsDaemon(gpu_id_of("cuda:0", os.environ), _CONTROL)
    try:
        daemon.start()
        yield daemon.clients
    finally:
        daemon.stop()


CHECKS = {"mps": mps, "mps-client": client}
