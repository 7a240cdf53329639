"""What a GPU can do: memory, bandwidth, 16-bit compute, SMs (makers' data sheets, dense rates)."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

GIB = 2**30
_TENTHS = tuple(step / 10 for step in range(1, 11))
_CPU_FLOPS_PER_CORE = 40e9
"""fp32 of one core in oneDNN's matrix products (8 lanes, 2 FMA units, about half of the peak)."""
_CPU_BANDWIDTH_PER_CORE = 8e9
_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


@dataclass(frozen=True, slots=True)
class Gpu:
    """One accelerator. A CPU socket is a "GPU" whose SMs are its cores.

    memory_bytes: all of it. usable_share: what one engine may take of it. bandwidth: bytes/s.
    flops: dense 16-bit FLOP/s (CPU: fp32). link: bytes/s to a peer in one direction.
    bandwidth_knee: smallest share of the SMs that draws the whole memory bandwidth.
    shares: the rungs of SM shares it can be divided into, ascending.
    """

    name: str
    memory_bytes: int
    bandwidth: float
    flops: float
    num_sms: int
    link: float
    usable_share: float = 0.9
    bandwidth_knee: float = 0.5
    shares: tuple[float, ...] = _TENTHS
    is_cpu: bool = False


_TABLE = (
    Gpu("A100-40GB", 40 * GIB, 1.555e12, 312e12, 108, 300e9),
    Gpu("A100-80GB", 80 * GIB, 2.039e12, 312e12, 108, 300e9),
    Gpu("H100", 80 * GIB, 3.35e12, 989e12, 132, 450e9),
    Gpu("H200", 140 * GIB, 4.8e12, 989e12, 132, 450e9),
    Gpu("B200", 179 * GIB, 8.0e12, 2250e12, 148, 900e9),
    Gpu("L40S", 45 * GIB, 0.864e12, 362e12, 142, 32e9),
    Gpu("L4", 22 * GIB, 0.3e12, 121e12, 58, 32e9),
    Gpu("A10G", 22 * GIB, 0.6e12, 70e12, 80, 32e9),
    Gpu("RTX4090", 24 * GIB, 1.008e12, 165e12, 128, 32e9),
)
GPUS: Mapping[str, Gpu] = MappingProxyType({gpu.name: gpu for gpu in _TABLE})
"""Known GPUs by name. Cards with ECC on by default are listed with what it leaves."""


def cpu(cores: int, memory_bytes: int) -> Gpu:
    """This kind of machine's cores as one "GPU": half its memory, shares of one thread or all."""
    return Gpu(
        name="cpu",
        memory_bytes=memory_bytes,
        bandwidth=_CPU_BANDWIDTH_PER_CORE * cores,
        flops=_CPU_FLOPS_PER_CORE * cores,
        num_sms=cores,
        link=_CPU_BANDWIDTH_PER_CORE,
        usable_share=0.5,
        bandwidth_knee=1.0,
        shares=(0.5, 1.0) if cores > 1 else (1.0,),
        is_cpu=True,
    )


def local_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def local_memory_bytes() -> int:
    """Memory of this machine, or of the control group around this process where that is less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        limit = _CGROUP_LIMIT.read_text().strip()
    except OSError:
        return total
    return min(total, int(limit)) if limit.isdigit() else total
