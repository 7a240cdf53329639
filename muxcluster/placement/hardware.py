"""GPU specifications: memory, bandwidth, 16-bit compute, SMs, links.

Bandwidth, FLOP/s, SMs and links are from the makers' data sheets; FLOP/s are dense (no sparsity)
with sums in fp32, which halves GeForce cards. Memory is the total that CUDA reports, rounded down;
driver and ECC take a part of what the card's name says.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from muxcluster.placement.names import nearest

GIB = 2**30
_TENTHS = tuple(step / 10 for step in range(1, 11))
WHOLE = (1.0,)  # shares of a GPU whose node cannot divide it
# fp32 of one core in oneDNN's matrix products (8 lanes, 2 FMA units, about half of the peak).
_CPU_FLOPS_PER_CORE = 40e9
_CPU_BANDWIDTH_PER_CORE = 8e9
_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


@dataclass(frozen=True, slots=True)
class Gpu:
    """One accelerator. A CPU socket is a "GPU" whose SMs are its cores."""

    name: str
    memory_bytes: int  # all of it
    bandwidth: float  # bytes/s
    flops: float  # dense 16-bit FLOP/s (CPU: fp32)
    num_sms: int
    link: float  # bytes/s to a peer in one direction
    # Bytes/s of large copies to or from pinned host memory
    host_link: float = 25e9
    usable_share: float = 0.9  # share of the memory that one engine may take
    # SM share above which further SMs draw little more memory bandwidth (0.4: fitted to decode on
    # 30 to 100 % of an A100)
    bandwidth_knee: float = 0.4
    # SM shares that it can be divided into, ascending; WHOLE where its node cannot divide it
    shares: tuple[float, ...] = _TENTHS
    is_cpu: bool = False


_PCIE3, _PCIE4, _PCIE5 = 16, 32, 64
# Share of a PCIe x16 slot's rate that copies reach: 12.5, 25 and 50 GB/s are usually measured on
# generations 3, 4 and 5.
_PAYLOAD = 25 / 32
# PCIe generations other than 4. GB200's link to its CPU is faster; it counts as PCIe 5.
_SLOTS: Mapping[str, int] = MappingProxyType(
    {
        **dict.fromkeys(("V100-16GB", "V100-32GB", "T4"), _PCIE3),
        **dict.fromkeys(("H100", "H100-PCIe", "H100-NVL", "H200", "RTX5090"), _PCIE5),
        **dict.fromkeys(("B200", "GB200", "B300"), _PCIE5),
    }
)
_ROWS = (
    # name, GiB, GB/s, TFLOP/s, SMs, link in GB/s
    ("V100-16GB", 15.7, 900, 125, 80, 150),
    ("V100-32GB", 31.7, 900, 125, 80, 150),
    ("T4", 14.5, 320, 65, 40, _PCIE3),
    ("A100-40GB", 39.3, 1555, 312, 108, 300),
    ("A100-40GB-PCIe", 39.3, 1555, 312, 108, _PCIE4),
    ("A100-80GB", 79.1, 2039, 312, 108, 300),
    ("A100-80GB-PCIe", 79.1, 1935, 312, 108, _PCIE4),
    ("A10", 22.0, 600, 125, 72, _PCIE4),
    ("A10G", 22.0, 600, 70, 80, _PCIE4),
    ("A6000", 47.4, 768, 154.8, 84, _PCIE4),
    ("RTX3090", 23.5, 936, 71, 82, _PCIE4),
    ("L4", 22.0, 300, 121, 58, _PCIE4),
    ("L40", 44.3, 864, 181, 142, _PCIE4),
    ("L40S", 44.3, 864, 362, 142, _PCIE4),
    ("RTX4090", 23.5, 1008, 165.2, 128, _PCIE4),
    ("H100", 79.1, 3350, 989, 132, 450),
    ("H100-PCIe", 79.1, 2000, 756, 114, _PCIE5),
    ("H100-NVL", 93.0, 3900, 835, 132, _PCIE5),
    ("H200", 139.7, 4800, 989, 132, 450),
    ("RTX5090", 31.3, 1792, 209.5, 170, _PCIE5),
    ("B200", 178.3, 7700, 2250, 148, 900),
    ("GB200", 184.0, 8000, 2500, 152, 900),
    ("B300", 267.5, 7700, 2250, 148, 900),
)
# Known GPUs by name. "H100", "V100", "A100" without "PCIe" are the NVLink modules. NVLink bridges,
# which join pairs of cards only, are not counted: a bridged card is as fast as its PCIe slot.
GPUS: Mapping[str, Gpu] = MappingProxyType(
    {
        name: Gpu(
            name,
            int(gib * GIB),
            gb_s * 1e9,
            tflops * 1e12,
            sms,
            link * 1e9,
            _PAYLOAD * _SLOTS.get(name, _PCIE4) * 1e9,
        )
        for name, gib, gb_s, tflops, sms, link in _ROWS
    }
)

_MAKERS = re.compile(r"nvidia|geforce|tesla", re.IGNORECASE)
_OTHER_NAMES: Mapping[str, str] = {
    "v100sxm216gb": "V100-16GB",
    "v100sxm232gb": "V100-32GB",
    "a10040g": "A100-40GB",
    "a100sxm440gb": "A100-40GB",
    "a100pcie40gb": "A100-40GB-PCIe",
    "a10080g": "A100-80GB",
    "a100sxm480gb": "A100-80GB",
    "a100pcie80gb": "A100-80GB-PCIe",
    "rtxa6000": "A6000",
    "h10080gb": "H100",
    "h10080gbhbm3": "H100",
    "h100sxm": "H100",
    "h100sxm5": "H100",
    "h200sxm": "H200",
    "b300sxm6ac": "B300",
}


def gpu_named(name: str) -> Gpu:
    """The GPU of that name: ours, CUDA's ("NVIDIA A100-SXM4-80GB") or Ray's accelerator type
    ("A100-80G"), in any case and punctuation.

    Raises ValueError with the nearest names where none fits or, as for "A100", several do.
    """
    short = _MAKERS.sub("", name).strip(" -_")
    found = _BY_KEY.get(_key(short))
    if found is None:
        raise ValueError(f"unknown GPU {name!r}{nearest(short, [*GPUS, 'cpu'])}")
    return GPUS[found]


def _key(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


_BY_KEY: Mapping[str, str] = {**_OTHER_NAMES, **{_key(name): name for name in GPUS}}


def cpu(cores: int, memory_bytes: int) -> Gpu:
    """Return this kind of machine's cores as one "GPU": half its memory, shares of one thread or
    all."""
    return Gpu(
        name="cpu",
        memory_bytes=memory_bytes,
        bandwidth=_CPU_BANDWIDTH_PER_CORE * cores,
        flops=_CPU_FLOPS_PER_CORE * cores,
        num_sms=cores,
        link=_CPU_BANDWIDTH_PER_CORE,
        host_link=_CPU_BANDWIDTH_PER_CORE,
        usable_share=0.5,
        bandwidth_knee=1.0,
        shares=(0.5, 1.0) if cores > 1 else WHOLE,
        is_cpu=True,
    )


def local_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def local_memory_bytes() -> int:
    """Memory of this machine, or of this process's control group if that is less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        limit = _CGROUP_LIMIT.read_text().strip()
    except OSError:
        return total
    return min(total, int(limit)) if limit.isdigit() else total
