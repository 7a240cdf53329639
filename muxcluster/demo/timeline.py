"""A timeline picture: jobs as bars, one lane per worker and SM share."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from muxcluster.core.served import JobRecord

HATCH = {"prefill": "", "decode": "", "mixed": "//"}
ALPHA = {"prefill": 1.0, "decode": 0.45, "mixed": 0.8}

Lane = tuple[str, float]


def lanes(jobs: Sequence[JobRecord]) -> list[Lane]:
    """(phase, SM share) pairs in use: prefill above decode, large shares first."""
    order = {"prefill": 0, "mixed": 1, "decode": 2}
    return sorted({(job.phase, job.share) for job in jobs}, key=lambda x: (order[x[0]], -x[1]))


def draw(jobs: Sequence[JobRecord], window_s: tuple[float, float]) -> Figure:
    """Jobs within `window_s` (seconds on the unit's clock) as bars coloured by model."""
    start_s, end_s = window_s
    shown = [job for job in jobs if job.end_s > start_s and job.start_s < end_s]
    rows = lanes(shown)
    figure = Figure(figsize=(12, 1.6 + 0.8 * len(rows)), layout="constrained")
    axes = figure.add_subplot()
    colors = _colors(shown)
    for job in shown:
        _bar(axes, job, rows.index((job.phase, job.share)), start_s, colors[job.model])
    for model, color in colors.items():
        axes.barh(0, 0, color=color, label=model)
    axes.set_yticks(range(len(rows)), [f"{phase}, {share:.0%} of SMs" for phase, share in rows])
    axes.invert_yaxis()
    axes.set_xlim(0.0, end_s - start_s)
    axes.set_xlabel("seconds (on a CPU a share of SMs is a number of threads)")
    figure.legend(loc="outside upper center", ncols=max(1, len(colors)))
    return figure


def _bar(axes: Any, job: JobRecord, row: int, origin_s: float, color: str) -> None:
    axes.barh(
        row,
        job.end_s - job.start_s,
        left=job.start_s - origin_s,
        height=0.7,
        color=color,
        alpha=ALPHA[job.phase],
        hatch=HATCH[job.phase],
        linewidth=0,
    )


def _colors(jobs: Sequence[JobRecord]) -> Mapping[str, str]:
    models = sorted({job.model for job in jobs})
    return {model: f"C{index}" for index, model in enumerate(models)}


def save(figure: Figure, stem: Path) -> tuple[Path, Path]:
    """Write `stem`.svg and `stem`.png; the SVG is the same for the same jobs."""
    svg, png = stem.with_suffix(".svg"), stem.with_suffix(".png")
    with matplotlib.rc_context({"svg.hashsalt": "muxcluster"}):
        figure.savefig(svg, metadata={"Date": None})
    figure.savefig(png, dpi=110)
    return svg, png
