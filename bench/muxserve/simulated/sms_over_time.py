"""Plot of jobs as areas: the part of a mesh's SMs of each model's phases, over time."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.ticker import PercentFormatter

from muxcluster.sim.core.timeline import JobSpan
from muxcluster.sim.plot.style import Colour, dress

_EDGE = "white"


@dataclass(frozen=True, slots=True)
class Area:
    """A job's part of the SMs, `low` to `high` in 0 to 1, while its neighbours stay the same."""

    span: JobSpan
    start_s: float
    end_s: float
    low: float
    high: float


def areas(spans: Sequence[JobSpan], models: Sequence[str]) -> Iterator[Area]:
    """Yield the areas of one unit's jobs.

    Prefill is drawn from the bottom up, decodes from the top down in the order of `models`: the
    number of a job's SMs is known, not which ones.
    """
    last: dict[int, Area] = {}
    for area in _slices(spans, models):
        known = last.pop(id(area.span), None)
        if known is None:
            last[id(area.span)] = area
        elif (known.low, known.high) == (area.low, area.high):
            last[id(area.span)] = replace(area, start_s=known.start_s)
        else:
            yield known
            last[id(area.span)] = area
    yield from last.values()


def _slices(spans: Sequence[JobSpan], models: Sequence[str]) -> Iterator[Area]:
    """Yield areas cut whenever any job begins or ends."""
    times = sorted({time for span in spans for time in (span.start_s, span.end_s)})
    for start_s, end_s in pairwise(times):
        running = [each for each in spans if each.start_s <= start_s and each.end_s >= end_s]
        running.sort(key=lambda each: models.index(each.model))
        bottom, top = 0.0, 1.0
        for span in running:
            if span.phase == "prefill":
                yield Area(span, start_s, end_s, bottom, bottom := round(bottom + span.share, 9))
            else:
                yield Area(span, start_s, end_s, low := round(top - span.share, 9), top)
                top = low


def sms_over_time(
    axes: Axes,
    spans: Iterable[JobSpan],
    colours: Mapping[str, Colour],
    start_s: float,
    end_s: float,
) -> None:
    """Draw one unit's jobs from `start_s` to `end_s` in milliseconds; prefill is hatched.

    colours: by model. White lines separate jobs and decode steps; steps that the simulator merged
    are drawn with equal lengths.
    """
    dress(axes, "", "milliseconds", "SMs")
    near = [each for each in spans if each.end_s > start_s and each.start_s < end_s]
    found = [
        area for area in areas(near, list(colours)) if start_s < area.end_s and area.start_s < end_s
    ]
    for model, colour in colours.items():
        for phase, hatch in (("prefill", "////"), ("decode", None), ("mixed", "....")):
            mine = [a for a in found if (a.span.model, a.span.phase) == (model, phase)]
            boxes = [_box(area, start_s) for area in mine]
            drawn = PolyCollection(boxes, facecolors=[colour], hatch=hatch, linewidths=0)
            axes.add_collection(drawn)
    lines = [line for area in found for line in _edges(area, start_s)]
    axes.add_collection(LineCollection(lines, colors=_EDGE, linewidths=0.7))
    axes.set_xlim(0, 1e3 * (end_s - start_s))
    axes.set_ylim(0, 1)
    axes.set_yticks((0, 0.5, 1))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.grid(visible=False)


def _box(area: Area, start_s: float) -> list[tuple[float, float]]:
    left, right = (1e3 * (time - start_s) for time in (area.start_s, area.end_s))
    low, high = area.low, area.high
    return [(left, low), (right, low), (right, high), (left, high)]


def _edges(area: Area, start_s: float) -> Iterator[list[tuple[float, float]]]:
    left, right = (1e3 * (time - start_s) for time in (area.start_s, area.end_s))
    inner = area.high if area.span.phase == "prefill" else area.low
    yield [(left, inner), (right, inner)]
    span = area.span
    step_s = (span.end_s - span.start_s) / span.num_steps
    for index in range(span.num_steps):
        begin_s = span.start_s + index * step_s
        if area.start_s <= begin_s < area.end_s:
            place = 1e3 * (begin_s - start_s)
            yield [(place, area.low), (place, area.high)]
