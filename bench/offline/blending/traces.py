"""BlendServe's workloads synthesised from published statistics: mixtures of six kinds of requests.

Each kind has the sharing and the density that BlendServe reports for its source: BurstGPT .02;
17.8, MMLU .86; 54.9, OpenVid 0; .05 with a mean output of 16K, WildChat .19; 2.1, ShareGPT .02;
3.1, Azure code .01; 33.2. Prompt lengths are near those of the sources, output lengths follow from
the density. What little BurstGPT, ShareGPT and Azure share is a system prompt, so that the tree
has a node for each; MMLU has its usual first words, and five examples a subject.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from bench.traces.batchmix import Kind, mixed_job
from muxcluster.offline.choice import JobSummary, Unplanned, summary_of
from muxcluster.offline.prefix.prompts import flat_prompts
from muxcluster.placement.cost.resources import ResourceModel

BLOCK_TOKENS = 16
LONGEST = 65_536  # output tokens of a video at most
BASE = {
    "burstgpt": Kind(0.25, 1, 0, 605, 44, heading=16),
    "wildchat": Kind(0.25, 3, 152, 352, 405),
    "sharegpt": Kind(0.25, 1, 0, 600, 335, heading=16),
    "azure": Kind(0.25, 1, 0, 2032, 24, heading=16),
}
MMLU = Kind(1.0, 250, 632, 100, 2, heading=16)
VIDEO = Kind(1.0, 1, 0, 60, 16_384, most=LONGEST)
# Of --quick. Videos of 2,048 tokens are hardly bound by memory. With long videos 2,000 requests
# reach 0.32 of the optimum: the longest of three takes 334 s alone, the optimum 135 s.
SHORT_VIDEO = replace(VIDEO, output=8_192, most=16_384)
SUBJECTS = 57
"""Of MMLU: groups of a small trace, where whole ones would be too few."""
MEASURED = 3000
"""Requests of one kind that its mean work is taken from, at least."""


@dataclass(frozen=True, slots=True)
class Mix:
    """What a mixture should be like as a whole."""

    density: float
    sharing: float  # of its prompt tokens, 0 to 1
    video: Kind = VIDEO

    @property
    def name(self) -> str:
        """Short, for tables."""
        videos = "" if self.video == VIDEO else ", short videos"
        return f"density {self.density:g}, sharing {self.sharing:.0%}{videos}"


TRACES = tuple(Mix(density, sharing) for sharing in (0.35, 0.05) for density in (1.4, 0.9))
GRID = tuple(
    Mix(density, sharing)
    for sharing in (0.05, 0.15, 0.25, 0.35, 0.45)
    for density in (0.8, 1.1, 1.4, 1.7, 2.0)
)


def with_short_videos(mixes: Sequence[Mix]) -> list[Mix]:
    """Return the mixtures with videos that suit a small job."""
    return [replace(mix, video=SHORT_VIDEO) for mix in mixes]


def kinds_of(mix: Mix, model: ResourceModel) -> dict[str, Kind]:
    """All kinds with their shares: those of MMLU and of videos are solved for.

    Raises ValueError where no mixture of these kinds is like that.
    """
    kinds = BASE | {"mmlu": MMLU, "video": mix.video}
    means = {name: np.array(_mean_work(kind, model)) for name, kind in kinds.items()}
    base = np.sum([kind.share * means[name] for name, kind in BASE.items()], axis=0)
    columns = np.stack((base, means["mmlu"], means["video"]), axis=1)
    prompt, saved, compute_s, memory_s = columns
    rows = (saved - mix.sharing * prompt, compute_s - mix.density * memory_s, np.ones(3))
    rest, mmlu, video = np.linalg.solve(np.stack(rows), np.array([0.0, 0.0, 1.0])).tolist()
    if min(rest, mmlu, video) < 0:
        raise ValueError(f"no mixture of these kinds has {mix.name}")
    shares = {name: kind.share * rest for name, kind in BASE.items()} | {
        "mmlu": mmlu,
        "video": video,
    }
    return {name: replace(kind, share=shares[name]) for name, kind in kinds.items()}


def trace(
    mix: Mix, num_requests: int, model: ResourceModel, size_bytes: float, seed: int
) -> Unplanned:
    """At least about `num_requests` requests in random order, as many as make whole videos.

    Raises ValueError as `kinds_of`.
    """
    kinds = kinds_of(mix, model)
    video_share = kinds["video"].share
    count = round(max(1, math.ceil(video_share * num_requests)) / video_share)
    kinds["mmlu"] = _whole_groups(kinds["mmlu"], count)
    return _job(list(kinds.values()), count, model, size_bytes, seed)


def kind_summary(kind: Kind, model: ResourceModel) -> JobSummary:
    """What requests of one kind are like."""
    count = max(MEASURED, SUBJECTS * kind.degree)
    job = _job([replace(kind, share=1.0)], count, model, 1.0, seed=0)
    return summary_of(job.with_tree())


@cache
def _mean_work(kind: Kind, model: ResourceModel) -> tuple[float, float, float, float]:
    """Prompt tokens, saved tokens, compute and memory seconds of one request in the mean."""
    summary = kind_summary(kind, model)
    sums = (
        summary.prompt_tokens,
        summary.sharing * summary.prompt_tokens,
        summary.compute_s,
        summary.memory_s,
    )
    prompt, saved, compute_s, memory_s = (each / summary.num_requests for each in sums)
    return prompt, saved, compute_s, memory_s


def _whole_groups(kind: Kind, num_requests: int) -> Kind:
    """Groups of nearly the wanted size that add up to the kind's share."""
    count = round(kind.share * num_requests)
    num_groups = min(count, max(SUBJECTS, round(count / kind.degree)))
    return replace(kind, degree=max(1, round(count / num_groups)))


def _job(
    kinds: list[Kind], num_requests: int, model: ResourceModel, size_bytes: float, seed: int
) -> Unplanned:
    job = mixed_job(kinds, num_requests, np.random.default_rng(seed))
    prompts = flat_prompts(job.ids, job.offsets)
    return Unplanned(prompts, job.output_tokens, model, size_bytes, BLOCK_TOKENS, seed)
