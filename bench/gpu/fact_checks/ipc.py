"""Facts about CUDA IPC: a tensor of one process mapped, read and written in another."""

from multiprocessing.queues import Queue
from time import perf_counter
from typing import Any

import torch
import torch.multiprocessing as multiprocessing

from bench.gpu.fact_checks.answer import Answer

_COUNT = 32 << 20
_WAIT_S = 30.0


def ipc(device: str = "cuda") -> Answer:
    """An owner and a worker, both spawned: what one writes the other must read, both ways.

    device: `cpu` tries the script out, through POSIX shared memory.
    """
    spawn = multiprocessing.get_context("spawn")
    to_worker, to_owner, to_us = (spawn.Queue() for _ in range(3))
    owner = spawn.Process(target=_owner, args=(device, to_worker, to_owner, to_us))
    worker = spawn.Process(target=_worker, args=(device, to_worker, to_owner, to_us))
    for process in (owner, worker):
        process.start()
    found: dict[str, Any] = {}
    try:
        for _ in range(2):
            found |= to_us.get(timeout=_WAIT_S)
    finally:
        for process in (owner, worker):
            process.join(timeout=10)
            process.kill()
    right = bool(found["worker_read_right"] and found["owner_read_right"])
    text = (
        f"{'mapped, read and written correctly' if right else 'contents DIFFER'} in both "
        f"directions; mapping {found['map_s'] * 1e3:.1f} ms; the worker reads it at "
        f"{found['read_bytes_per_s'] / 1e12:.2f} TB/s"
    )
    return Answer("yes" if right else "no", text, found)


def _owner(
    device: str, to_worker: "Queue[Any]", to_owner: "Queue[Any]", to_us: "Queue[Any]"
) -> None:
    shared = torch.arange(_COUNT, dtype=torch.float32, device=device)
    _wait(device)
    to_worker.put(shared)
    to_owner.get(timeout=_WAIT_S)
    expected = torch.arange(_COUNT, dtype=torch.float32, device=device) * -2
    to_us.put({"owner_read_right": bool(torch.equal(shared, expected))})
    to_worker.put("done")
    # The queue's messages must have left before the process ends.
    to_owner.get(timeout=_WAIT_S)


def _worker(
    device: str, to_worker: "Queue[Any]", to_owner: "Queue[Any]", to_us: "Queue[Any]"
) -> None:
    _wait(device)
    start = perf_counter()
    mapped = to_worker.get(timeout=_WAIT_S)
    seconds = perf_counter() - start
    expected = torch.arange(_COUNT, dtype=torch.float32, device=device)
    right = bool(torch.equal(mapped, expected))
    rate = _read_rate(mapped)
    mapped.mul_(-2)
    _wait(device)
    to_us.put({"worker_read_right": right, "map_s": seconds, "read_bytes_per_s": rate})
    to_owner.put("written")
    to_worker.get(timeout=_WAIT_S)
    to_owner.put("seen")


def _read_rate(tensor: torch.Tensor) -> float:
    tensor.sum()
    _wait(tensor.device.type)
    start = perf_counter()
    for _ in range(20):
        tensor.sum()
    _wait(tensor.device.type)
    return 20 * tensor.nbytes / (perf_counter() - start)


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


CHECKS = {"ipc": ipc}
