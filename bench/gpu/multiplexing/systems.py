"""The ways of sharing one GPU that bench/gpu/multiplex.py compares, as units."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from bench.gpu.multiplexing.work import Tenant, Work
from bench.gpu.running.models import blocks_for, bytes_of_block, spec_of, write_model
from muxcluster.core.errors import ConfigError
from muxcluster.core.job import Phase, WorkerSpec
from muxcluster.core.unitspec import ModelSpec, SchedulerSpec, UnitSpec


@dataclass(frozen=True, slots=True)
class System:
    """A way of sharing one GPU."""

    name: str
    partition: str  # as UnitSpec has it
    lane: str
    # every model keeps its part of the SMs and of the KV pool, in a unit of its own
    is_static: bool = False
    may_unshare: bool = False  # as SchedulerSpec has it


# In the order in which they run: what claims need first.
SYSTEMS = (
    System("temporal", "none", "temporal"),
    System("adbs-mps", "mps", "adbs"),
    System("static-mps", "mps", "mixed", is_static=True),
    System("adbs-green", "green", "adbs"),
    System("mixed", "none", "mixed"),
    System("adbs-auto", "auto", "adbs", may_unshare=True),
    System("static-green", "green", "mixed", is_static=True),
)
# Workers whose multiprocessors are apart, by partition: contexts are taken from the two ends
# of the card. A static split of more models would not be one.
MOST_APART = {"green": 2}
# On a CPU threads stand for SMs; that what a CPU cannot have is skipped is tried out too.
DRY_SYSTEMS = (
    System("temporal", "none", "temporal"),
    System("adbs-threads", "threads", "adbs"),
    System("static-threads", "threads", "mixed", is_static=True),
    System("mixed", "none", "mixed"),
    System("adbs-green", "green", "adbs"),
)


@dataclass(frozen=True, slots=True)
class Site:
    """Where units run."""

    device: str
    dtype: str
    rungs: tuple[float, ...]  # SM shares that are measured
    workers: tuple[WorkerSpec, ...]  # of a unit that shares the SMs
    max_seqs: int  # most sequences of a model; the KV pool holds so many sequences of mean length


_PREFILLS = frozenset({Phase.PREFILL, Phase.MIXED})
_DECODES = frozenset({Phase.DECODE})
# Workers as the configuration makes them for several models on a GPU.
GPU_SITE = Site(
    "cuda:0",
    "bfloat16",
    (0.3, 0.5, 0.7, 1.0),
    (
        WorkerSpec(0, (0.3, 0.5, 1.0), _PREFILLS),
        WorkerSpec(1, (0.3, 0.5, 0.7, 1.0), _DECODES),
        WorkerSpec(2, (0.3, 0.5, 0.7, 1.0), _DECODES),
    ),
    96,
)
DRY_SITE = Site(
    "cpu", "float32", (0.5, 1.0), (WorkerSpec(0, (0.5, 1.0)), WorkerSpec(1, (0.5, 1.0))), 8
)


def model_spec(folder: Path, tenant: Tenant, work: Work, site: Site) -> ModelSpec:
    """Its config.json is written into `folder`."""
    prompt, output = work.mean_tokens
    return spec_of(
        tenant.name,
        write_model(folder / tenant.name, tenant.shape),
        tenant.shape,
        site.dtype,
        max_model_len=2 * work.longest,
        max_seqs=site.max_seqs,
        rate_per_s=work.rate_per_s * tenant.part,
        mean_prompt_tokens=prompt,
        mean_output_tokens=output,
    )


def shared_unit(folder: Path, work: Work, site: Site, system: System) -> UnitSpec:
    """All models in one unit, the same KV pool for every system."""
    models = tuple(model_spec(folder, tenant, work, site) for tenant in work.tenants)
    workers: tuple[WorkerSpec, ...] = (WorkerSpec(0, (1.0,)),)
    if system.partition != "none":
        workers = site.workers
    return UnitSpec(
        unit_id=system.name,
        models=models,
        num_blocks=sum(_blocks(model, work, site) for model in models),
        block_bytes=bytes_of_block(site.dtype),
        workers=workers,
        # As policy.pipeline_depth is on a GPU, for every system alike.
        scheduler=SchedulerSpec(lane=system.lane, may_unshare=system.may_unshare, pipeline_depth=2),
        device=site.device,
        partition=system.partition,
    )


def static_units(whole: UnitSpec, shares: Mapping[str, float]) -> tuple[UnitSpec, ...]:
    """A unit a model of `whole`, on its share of the SMs, with an equal part of the sequences.

    Raises ConfigError where the partition cannot keep so many apart.
    """
    most = MOST_APART.get(whole.partition, len(whole.models))
    if len(whole.models) > most:
        message = f"{whole.partition} keeps {most} models apart, not {len(whole.models)}"
        raise ConfigError(whole.unit_id, "partition", message)
    return tuple(
        replace(
            whole,
            unit_id=f"{whole.unit_id}-{model.name}",
            models=(model,),
            num_blocks=_part_of_pool(whole, model),
            workers=(WorkerSpec(0, (shares[model.name],)),),
        )
        for model in whole.models
    )


def static_whole(whole: UnitSpec, shares: Mapping[str, float]) -> UnitSpec:
    """What the executor of all of them is told: the i-th worker runs the i-th model's jobs."""
    workers = (WorkerSpec(i, (shares[model.name],)) for i, model in enumerate(whole.models))
    return replace(whole, workers=tuple(workers))


def _blocks(model: ModelSpec, work: Work, site: Site) -> int:
    tokens = int(sum(work.mean_tokens)) + 1
    num_bytes = bytes_of_block(site.dtype)
    return max(
        blocks_for(model, site.max_seqs, tokens, num_bytes),
        blocks_for(model, 1, model.max_model_len, num_bytes),
    )


def _part_of_pool(whole: UnitSpec, model: ModelSpec) -> int:
    """In proportion to the blocks of a token, so that each holds as many sequences."""
    weights = {
        each.name: each.shape.blocks_per_column / each.shape.block_tokens(whole.block_bytes)
        for each in whole.models
    }
    return int(whole.num_blocks * weights[model.name] / sum(weights.values()))
