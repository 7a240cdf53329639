"""Facts about the GPU itself: versions, ceilings, graph capture."""

import os
import platform
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from bench.gpu.fact_checks.answer import Answer
from bench.gpu.fact_checks.small_decode import LAYERS, ROWS, VOCAB, SmallDecode
from bench.gpu.running.ceilings import copy_bandwidth, host_bandwidth, matmul_rate
from bench.gpu.running.clock import Clock
from bench.gpu.running.run import relative_error
from muxcluster.engine.gpu.driver import Driver

_PACKAGES = (
    "torch",
    "triton",
    "transformers",
    "numpy",
    "flashinfer-python",
    "cuda-bindings",
    "safetensors",
    "pyzmq",
    "msgspec",
    "pydantic",
    "ray",
)
_QUERY = "name,driver_version,memory.total,compute_mode,mig.mode.current"
_CUDA = torch.device("cuda")
_COPIED_BYTES, _SIDE, _HOST_BYTES = 4 << 30, 8192, 1 << 30
_TINY_BYTES, _TINY_SIDE = 1 << 20, 64


def versions(device: str = "cuda") -> Answer:
    """What is installed, and what the card is. device: `cpu` leaves the card out."""
    numbers: dict[str, Any] = {
        "python": platform.python_version(),
        "cuda_of_torch": torch.version.cuda,
        "packages": {name: _version(name) for name in _PACKAGES},
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "tools": {tool: shutil.which(tool) for tool in ("nvcc", "gcc", "nvidia-cuda-mps-control")},
        "shared_memory_folder_bytes": shutil.disk_usage("/dev/shm").total,
        "nvidia_smi": _nvidia_smi(),
        "host_memory": Path("/proc/meminfo").read_text(encoding="ascii").splitlines()[0],
    }
    of_card, numbers_of_card = ("no GPU", {}) if device == "cpu" else _card()
    installed = {name: number for name, number in numbers["packages"].items() if number}
    text = (
        f"{of_card}; Python {numbers['python']}, CUDA {torch.version.cuda}; "
        + ", ".join(f"{name} {number}" for name, number in installed.items())
        + f". nvidia-smi: {numbers['nvidia_smi']}"
    )
    return Answer("measured", text, {**numbers, **numbers_of_card})


def _card() -> tuple[str, dict[str, Any]]:
    """In words and in numbers."""
    card = torch.cuda.get_device_properties(0)
    free, total = torch.cuda.mem_get_info()
    driver = Driver().version()
    numbers = {
        "cuda_of_driver": driver,
        "multiprocessors": card.multi_processor_count,
        "capability": f"{card.major}.{card.minor}",
        "l2_bytes": getattr(card, "L2_cache_size", None),
        "memory_bytes": total,
        "memory_free_bytes": free,
    }
    words = (
        f"{card.name}, {card.multi_processor_count} multiprocessors, {total / 2**30:.1f} GiB, "
        f"driver for CUDA {driver}"
    )
    return words, numbers


def ceilings(device: str = "cuda") -> Answer:
    """Copy bandwidth on the device and to the host, and the bf16 matrix rate; tiny on `cpu`."""
    where, tiny = torch.device(device), device == "cpu"
    clock = Clock(where, 2 if tiny else 20)
    copied, copying = copy_bandwidth(clock, where, _TINY_BYTES if tiny else _COPIED_BYTES)
    multiplied, multiplying = matmul_rate(clock, where, _TINY_SIDE if tiny else _SIDE)
    few = Clock(where, 2 if tiny else 5)
    host = host_bandwidth(few, where, _TINY_BYTES if tiny else _HOST_BYTES)
    numbers = {
        "copy_bytes_per_s": copied,
        "matmul_flops_per_s": multiplied,
        "host_to_device_bytes_per_s": host["to_device"],
        "device_to_host_bytes_per_s": host["to_host"],
        "copy_samples_s": copying.samples_s,
        "matmul_samples_s": multiplying.samples_s,
    }
    text = (
        f"device copy {copied / 1e12:.2f} TB/s (read + written), bf16 matrix products "
        f"{multiplied / 1e12:.0f} TFLOP/s; pinned host to device "
        f"{host['to_device'] / 1e9:.1f} GB/s, device to host {host['to_host'] / 1e9:.1f} GB/s"
    )
    return Answer("measured", text, numbers)


def graph() -> Answer:
    """A small decode step made of our kernels, captured and replayed with other tokens."""
    decode = SmallDecode(_CUDA)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            decode.step()
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        logits = decode.step()
    # With other inputs than at capture: the replay must compute, not repeat.
    decode.tokens.copy_(torch.randint(0, VOCAB, (ROWS,), device=_CUDA))
    captured.replay()
    replayed = logits.clone()
    # Matrix products may be chosen anew in a capture, so that the last bits may differ.
    error = relative_error(replayed, decode.step())
    events = [torch.cuda.Event(enable_timing=True) for _ in range(3)]
    events[0].record()
    for _ in range(50):
        decode.step()
    events[1].record()
    for _ in range(50):
        captured.replay()
    events[2].record()
    torch.cuda.synchronize()
    eager, replay = (events[i].elapsed_time(events[i + 1]) / 50 for i in range(2))
    text = (
        f"captured; replay with other tokens against the eager step: relative error {error:.1e}; "
        f"eager {eager:.3f} ms, replay {replay:.3f} ms a step of {ROWS} rows and {LAYERS} layers"
    )
    numbers = {"eager_ms": eager, "replay_ms": replay, "error": error}
    return Answer("yes" if error < 0.02 else "no", text, numbers)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _nvidia_smi() -> str:
    command = ("nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader")
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except OSError as missing:
        return str(missing)
    return (done.stdout or done.stderr).strip()


CHECKS = {"versions": versions, "ceilings": ceilings, "graph": graph}
