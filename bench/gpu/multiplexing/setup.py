"""Settings of bench/gpu/multiplex.py for its parts, read from JSON."""

from collections.abc import Mapping
from typing import Any

from bench.gpu.multiplexing.systems import DRY_SITE, DRY_SYSTEMS, GPU_SITE, SYSTEMS, Site, System
from bench.gpu.multiplexing.work import Work, tenants_of
from muxcluster.placement.cost import Cost, Profile, cost_for
from muxcluster.placement.hardware import cpu, gpu_named, local_cores, local_memory_bytes


def site_of(*, tiny: bool) -> Site:
    """Where units run."""
    return DRY_SITE if tiny else GPU_SITE


def systems_of(*, tiny: bool) -> tuple[System, ...]:
    """What is compared."""
    return DRY_SYSTEMS if tiny else SYSTEMS


def work_of(given: Mapping[str, Any], *, tiny: bool) -> Work:
    """From "sizes", "alpha", "rate_per_s", "duration_s", "length_scale" and "work_seed"."""
    return Work(
        tenants_of(given["sizes"], given["alpha"], tiny=tiny),
        given["rate_per_s"],
        given["duration_s"],
        given["length_scale"],
        given["work_seed"],
    )


def cost_of(profile: Profile) -> Cost:
    """The cost model that goes by `profile`."""
    here = profile.gpu == "cpu"
    gpu = cpu(local_cores(), local_memory_bytes()) if here else gpu_named(profile.gpu)
    return cost_for(gpu, profile.itemsize, [profile])
