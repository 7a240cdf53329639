"""Pairs of batch jobs for one unit: of each model a job, most bound by compute or by memory."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from bench.offline.joint.unit import BLOCK_BYTES, Shapes, kv_bytes, kv_shape, resources_of
from bench.traces.batchmix import Kind, mixed_job
from muxcluster.offline.choice import JobSummary, Unplanned, summary_of
from muxcluster.offline.prefix.prompts import flat_prompts
from muxcluster.placement.cost.resources import ResourceModel
from muxcluster.placement.shapes.known import shape_named
from muxcluster.placement.shapes.shape import ModelShape

CODE = Kind(1.0, 1, 0, 2032, 24, heading=16)  # Completions of code, as Azure's trace has them
# Multiple choice with five examples a subject, as MMLU has it.
EXAM = Kind(1.0, 250, 632, 100, 2, heading=16)
CHAT = Kind(1.0, 1, 0, 200, 1000)
LONG = Kind(1.0, 1, 0, 60, 1500, most=6000)  # Long answers to short questions
BALANCED = 1.3  # Compute over memory of a job that is a blend by itself
_MEASURED = 500


@dataclass(frozen=True, slots=True)
class Case:
    """Jobs of several models in one unit."""

    name: str
    kinds: Mapping[str, tuple[Kind, ...]]  # by model, of its job's requests

    @property
    def shapes(self) -> dict[str, ModelShape]:
        """By model."""
        return {model: shape_named(model) for model in self.kinds}


def cases() -> tuple[Case, ...]:
    """Three pairs that suit each other, and one of which each job is a blend already."""
    both = {
        model: _balanced(CODE, CHAT, resources_of({model: shape_named(model)})[model])
        for model in ("llama-3.1-8b", "llama-2-7b")
    }
    return (
        Case("code, 8B beside chat, 7B", {"llama-3.1-8b": (CODE,), "llama-2-7b": (CHAT,)}),
        Case("code, 14B beside chat, 7B", {"qwen2.5-14b": (CODE,), "llama-2-7b": (CHAT,)}),
        Case("exam, 8B beside long, 3B", {"llama-3.1-8b": (EXAM,), "llama-3.2-3b": (LONG,)}),
        Case("blends, 8B beside 7B", both),
    )


def jobs_of(case: Case, seconds: float, seed: int) -> dict[str, Unplanned]:
    """By model, each with so many seconds of the resource that it needs most.

    The memory they are planned for is that of a unit with this model alone.
    """
    found = {}
    for model, resources in resources_of(case.shapes).items():
        kinds, shapes = case.kinds[model], {model: case.shapes[model]}
        one = _measured(kinds, resources)
        count = max(1, round(seconds * one.num_requests / one.optimum_s))
        found[model] = _job(kinds, count, resources, shapes, seed)
    return found


def _balanced(first: Kind, second: Kind, resources: ResourceModel) -> tuple[Kind, Kind]:
    """Both kinds, so that the whole has the density `BALANCED`."""
    lacks = []
    for kind in (first, second):
        summary = _measured((kind,), resources)
        lacks.append((summary.compute_s - BALANCED * summary.memory_s) / summary.num_requests)
    share = lacks[1] / (lacks[1] - lacks[0])
    return replace(first, share=share), replace(second, share=1 - share)


@cache
def _measured(kinds: tuple[Kind, ...], resources: ResourceModel) -> JobSummary:
    """What some requests of these kinds are like."""
    count = _MEASURED * max(1, max(kind.degree for kind in kinds) // 25)
    job = mixed_job(kinds, count, np.random.default_rng(0))
    prompts = flat_prompts(job.ids, job.offsets)
    return summary_of(Unplanned(prompts, job.output_tokens, resources, 1.0, 16).with_tree())


def _job(
    kinds: tuple[Kind, ...], count: int, resources: ResourceModel, shapes: Shapes, seed: int
) -> Unplanned:
    (shape,) = shapes.values()
    made = mixed_job(kinds, count, np.random.default_rng(seed))
    prompts = flat_prompts(made.ids, made.offsets)
    block_tokens = kv_shape(shape).block_tokens(BLOCK_BYTES)
    return Unplanned(prompts, made.output_tokens, resources, kv_bytes(shapes), block_tokens, seed)
