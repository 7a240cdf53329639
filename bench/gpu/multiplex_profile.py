"""A small profile of the models on the card, by which loads, shares and predictions go."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bench.gpu.models import blocks_for, bytes_of_block
from bench.gpu.multiplex_systems import Site, model_spec
from bench.gpu.multiplex_work import Tenant, Work
from muxcluster.core.errors import ConfigError, EngineFailure
from muxcluster.core.job import WorkerSlot
from muxcluster.core.unitspec import SchedulerSpec, UnitSpec
from muxcluster.engine.profiling import measure
from muxcluster.engine.profiling_grid import Grid
from muxcluster.engine.profiling_pairs import measure_pairs, pair_points, paired_spec
from placement.cost import Pair, Profile, ProfiledModel

GPU_GRID = Grid((), batches=(1, 8, 48), lengths=(64, 384), repeats=2)
DRY_GRID = Grid((), batches=(1, 4), lengths=(16, 48), repeats=1)
_PAIRED = 2
"""Models that are also measured side by side: each more costs twice as long."""


@dataclass(frozen=True, slots=True)
class Measured:
    """partition: that shares were made by. refused: why others were not, by partition."""

    profile: Profile
    partition: str
    refused: dict[str, str]


def measured(work: Work, site: Site, partitions: Sequence[str], grid: Grid, card: str) -> Measured:
    """By the first of `partitions` that can be had; of equal shapes one model. card: its name.

    Raises what the last one raised where none can be had.
    """
    refused: dict[str, str] = {}
    for partition in partitions:
        shares = (1.0,) if partition == "none" else site.rungs
        whole = replace(grid, shares=shares)
        try:
            profile = _profile(work, site, partition, whole, card)
        except (ConfigError, EngineFailure, ImportError) as error:
            refused[partition] = str(error)
            if partition == partitions[-1]:
                raise
            continue
        return Measured(profile, partition, refused)
    raise ValueError("no partition to try")


def _profile(work: Work, site: Site, partition: str, grid: Grid, card: str) -> Profile:
    distinct = list({tenant.shape: tenant for tenant in reversed(work.tenants)}.values())[::-1]
    with tempfile.TemporaryDirectory(prefix="bench-gpu-") as folder:
        units = [_unit(Path(folder), work, site, tenant, grid) for tenant in distinct]
        units = [replace(unit, partition=partition) for unit in units]
        models = tuple(
            ProfiledModel(tenant.name, tenant.shape, measure(unit, grid, lambda point: None))
            for tenant, unit in zip(distinct, units, strict=True)
        )
        pairs = () if partition == "none" else _pairs(units[:_PAIRED], grid)
    itemsize = units[0].models[0].shape.itemsize
    return Profile(card, itemsize, f"bench/gpu/multiplex.py, {partition}", models, pairs)


def _pairs(units: Sequence[UnitSpec], grid: Grid) -> tuple[Pair, ...]:
    points = pair_points(units, grid)
    if not points:
        return ()
    return measure_pairs(paired_spec(units, points), points, grid.repeats, lambda point: None)


def _unit(folder: Path, work: Work, site: Site, tenant: Tenant, grid: Grid) -> UnitSpec:
    """That model alone, with room for the largest point and for a prefill beside it."""
    most, longest = max(grid.batches) + 1, max(grid.lengths)
    model = replace(model_spec(folder, tenant, work, site), max_seqs=most)
    num_bytes = bytes_of_block(site.dtype)
    return UnitSpec(
        unit_id="profile",
        models=(model,),
        num_blocks=blocks_for(model, most, longest, num_bytes),
        block_bytes=num_bytes,
        workers=(WorkerSlot(0, grid.shares),),
        scheduler=SchedulerSpec(token_budget=most * longest),
        device=site.device,
    )
