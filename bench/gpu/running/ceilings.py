"""Measured limits of the GPU: copy bandwidth and matrix products."""

from dataclasses import dataclass

import torch

from bench.gpu.running.clock import Clock, Timing


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Measured limits of a GPU."""

    copy_bytes_per_s: float  # device to device, bytes read plus bytes written
    matmul_flops_per_s: float  # bf16, random numbers (products of zeros run faster)


def copy_bandwidth(clock: Clock, device: torch.device, size: int) -> tuple[float, Timing]:
    """Bytes a second, read plus written, of copying `size` bytes on the device."""
    source = torch.randint(0, 255, (size,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    timing = clock.time(lambda: target.copy_(source))
    return 2 * size / timing.median_s, timing


def matmul_rate(clock: Clock, device: torch.device, size: int) -> tuple[float, Timing]:
    """Floating-point operations a second of a bf16 product of two random [size, size]."""
    left, right = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    timing = clock.time(lambda: left @ right)
    return 2 * size**3 / timing.median_s, timing


def host_bandwidth(clock: Clock, device: torch.device, size: int) -> dict[str, float]:
    """Bytes a second between page-locked host memory and the device, each way."""
    host = torch.empty(size, dtype=torch.uint8, pin_memory=device.type == "cuda")
    remote = torch.empty(size, dtype=torch.uint8, device=device)
    there = clock.time(lambda: remote.copy_(host, non_blocking=True))
    back = clock.time(lambda: host.copy_(remote, non_blocking=True))
    return {"to_device": size / there.median_s, "to_host": size / back.median_s}


def measure(
    clock: Clock, device: torch.device, *, tiny: bool
) -> tuple[Ceilings, dict[str, Timing]]:
    """Both ceilings and their timings, by name."""
    copied, copying = copy_bandwidth(clock, device, 1 << 16 if tiny else 4 << 30)
    multiplied, multiplying = matmul_rate(clock, device, 64 if tiny else 8192)
    return Ceilings(copied, multiplied), {"copy": copying, "matmul": multiplying}
