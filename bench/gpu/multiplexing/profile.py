"""A small profile of the models on the GPU, for loads, shares and predictions."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bench.gpu.multiplexing.systems import Site, model_spec
from bench.gpu.multiplexing.work import Tenant, Work
from bench.gpu.running.models import blocks_for, bytes_of_block
from muxcluster.core.errors import ConfigError, EngineFailure
from muxcluster.core.job import WorkerSpec
from muxcluster.core.unitspec import SchedulerSpec, UnitSpec
from muxcluster.engine.executor import Executor
from muxcluster.engine.profile.grid import Grid
from muxcluster.engine.profile.jobs import JobTarget, ProfileJobs, ProfileState
from muxcluster.engine.profile.model import PointRuns, run_in_turn
from muxcluster.engine.profile.pairs import pair_at, pair_points
from muxcluster.engine.unit.executor_choice import make_executor
from muxcluster.placement.cost import Cell, Profile, ProfiledModel

GPU_GRID = Grid((), batches=(1, 8, 48), lengths=(64, 384), repeats=2)
DRY_GRID = Grid((), batches=(1, 4), lengths=(16, 48), repeats=1)
_PAIRED = 2  # Models that are also measured side by side: each more costs twice as long


@dataclass(frozen=True, slots=True)
class Measured:
    """A measured profile."""

    profile: Profile
    partition: str  # that shares were made by
    refused: dict[str, str]  # why others were not, by partition


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
    """All in one unit, so that processes and contexts are made once."""
    distinct = list({tenant.shape: tenant for tenant in reversed(work.tenants)}.values())[::-1]
    with tempfile.TemporaryDirectory(prefix="bench-gpu-") as folder:
        alone = [_unit(Path(folder), work, site, tenant, grid) for tenant in distinct]
        points = () if partition == "none" else pair_points(alone[:_PAIRED], grid)
        whole = _whole(alone, grid, partition, is_paired=bool(points))
        executor = make_executor(whole)
        try:
            executor.start()
            models = tuple(
                ProfiledModel(tenant.name, tenant.shape, _cells(executor, whole, tenant, grid))
                for tenant in distinct
            )
            pairs = tuple(pair_at(executor, whole, point, grid.repeats) for point in points)
        finally:
            executor.close()
    itemsize = whole.models[0].shape.itemsize
    return Profile(card, itemsize, f"bench/gpu/multiplex.py, {partition}", models, pairs)


def _cells(executor: Executor, whole: UnitSpec, tenant: Tenant, grid: Grid) -> tuple[Cell, ...]:
    jobs = ProfileJobs(whole, JobTarget(tenant.name, 0), ProfileState(whole))
    runs = [PointRuns(point) for point in grid.points()]
    run_in_turn(executor, jobs, runs, grid.repeats, on_point=lambda point: None)
    return tuple(cell for each in runs for cell in each.cells(grid.repeats))


def _whole(alone: Sequence[UnitSpec], grid: Grid, partition: str, *, is_paired: bool) -> UnitSpec:
    """A unit of all models; where jobs run side by side, with a second worker at smaller shares."""
    workers = [WorkerSpec(0, grid.shares)]
    if is_paired:
        workers.append(WorkerSpec(1, tuple(share for share in grid.shares if share < 1)))
    return replace(
        alone[0],
        models=tuple(unit.models[0] for unit in alone),
        num_blocks=2 * max(unit.num_blocks for unit in alone),
        workers=tuple(workers),
        partition=partition,
    )


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
        workers=(WorkerSpec(0, grid.shares),),
        scheduler=SchedulerSpec(token_budget=most * longest),
        device=site.device,
    )
