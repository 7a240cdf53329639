"""Picture of a comparison: throughput and attainment by rate, latencies, KV pools over time."""

import math
import warnings
from collections.abc import Sequence
from io import BytesIO

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure, SubFigure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from muxcluster.sim.plot import panels as panels
from muxcluster.sim.plot.panels import Colours
from muxcluster.sim.plot.style import STYLE, dash_of, model_colours, system_colours
from muxcluster.sim.report.report import CaseReport

_WIDTH = 13.0
_ROW = 2.9
_TOP = 0.95
_MOST_BESIDE = 4
_LATENCIES = (
    ("ttft", "Time to first token at most"),
    ("tpot", "Time per further token at most"),
    ("latency", "End to end at most"),
)


def picture(reports: Sequence[CaseReport], form: str) -> bytes:
    """Return a file of the form "svg" or "png" with the reports of one or several rate scales.

    With several, throughput and attainment are drawn by rate; the rest is of the highest rate.
    Latency curves end below 100 % where requests never finished. Equal reports give equal bytes.
    Raises ValueError without reports.
    """
    if not reports:
        raise ValueError("nothing to draw")
    buffer = BytesIO()
    with rc_context(STYLE), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a model's name may have letters the font lacks
        metadata = {"Date": None} if form == "svg" else None
        _figure(reports).savefig(buffer, format=form, dpi=110, metadata=metadata)
    return buffer.getvalue()


def _figure(reports: Sequence[CaseReport]) -> Figure:
    top = max(report.rate_scale for report in reports)
    highest = [report for report in reports if report.rate_scale == top]
    kv_rows = -(-len(highest) // _MOST_BESIDE)
    num_models = max(len(report.models) for report in highest)
    legend_rows = -(-num_models // 8)
    heights = [0.33, 1.15, 1.0, kv_rows + 0.09 * legend_rows]
    layout = ConstrainedLayoutEngine(rect=(0.008, 0.004, 0.984, 0.992))
    figure = Figure((_WIDTH, _ROW * sum(heights)), facecolor="white", layout=layout)
    parts = figure.subfigures(4, 1, squeeze=False, height_ratios=heights)
    head, first, second, third = parts[:, 0]
    systems = system_colours(report.system for report in reports)
    _draw_head(head, highest, systems)
    _draw_first(first, reports, highest, systems)
    for axes, (name, label) in zip(second.subplots(1, 3), _LATENCIES, strict=True):
        panels.cdf(axes, highest, systems, name, label)
    _draw_kv(third, highest, legend_rows)
    return figure


def _draw_head(head: SubFigure, highest: Sequence[CaseReport], systems: Colours) -> None:
    first = highest[0]
    total = first.total
    title = f"{len(first.models)} models, {total.offered_per_s:.1f} requests/s offered"
    facts = f"simulated {first.duration_s:g} s, seed {first.seed}; "
    facts += f"models, latencies and KV pools at rate scale {first.rate_scale:g}"
    head.text(0.012, 0.95, title, fontsize=14, fontweight="bold", va="top")
    head.text(0.012, 0.56, facts, fontsize=9, va="top")
    lines = [
        Line2D([], [], color=colour, linestyle=dash_of(index), linewidth=2.5, label=name)
        for index, (name, colour) in enumerate(systems.items())
    ]
    head.legend(
        handles=lines, loc="lower left", ncols=min(6, len(lines)), frameon=False, fontsize=10
    )


def _draw_first(
    part: SubFigure,
    reports: Sequence[CaseReport],
    highest: Sequence[CaseReport],
    systems: Colours,
) -> None:
    served, attained, by_model = part.subplots(1, 3)
    if len({report.rate_scale for report in reports}) > 1:
        panels.throughput_by_rate(served, reports, systems)
        panels.attainment_by_rate(attained, reports, systems)
    else:
        panels.served_bars(served, highest, systems)
        panels.attainment_by_slo(attained, highest, systems)
    panels.served_by_model(by_model, highest, systems)


def _draw_kv(part: SubFigure, highest: Sequence[CaseReport], legend_rows: int) -> None:
    colours = model_colours(panels.by_rate(highest[0]))
    columns = min(_MOST_BESIDE, len(highest))
    rows = -(-len(highest) // columns)
    grid = part.subplots(rows, columns, squeeze=False).ravel()
    fullest = max(np.sum(list(r.use.kv_over_time.values()), axis=0).max() for r in highest)
    top = min(1.02, 0.1 * math.ceil(12 * fullest))
    for axes, report in zip(grid, highest, strict=False):
        panels.kv_over_time(axes, report, colours, top)
    for axes in grid[len(highest) :]:
        axes.set_axis_off()
    patches = [Patch(color=colour, label=name) for name, colour in colours.items()]
    columns = -(-len(patches) // legend_rows)
    part.legend(
        handles=patches, loc="outside lower center", ncols=columns, frameon=False, fontsize=8
    )
