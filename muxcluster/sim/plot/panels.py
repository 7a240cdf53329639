"""The panels of a comparison's picture."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import (
    FuncFormatter,
    LogLocator,
    MaxNLocator,
    NullFormatter,
    PercentFormatter,
)

from muxcluster.sim.plot.style import INK, Colour, dash_of, dress
from muxcluster.sim.report.report import CaseReport, GroupReport, Number, SpreadReport

Colours = Mapping[str, Colour]
_MOST_NAMED = 10  # models whose bars get names


def throughput_by_rate(axes: Axes, reports: Sequence[CaseReport], colours: Colours) -> None:
    """Draw requests/s served by requests/s offered; the grey line is all of them."""
    dress(axes, "Served", "requests/s offered", "requests/s")
    most = max(report.total.offered_per_s for report in reports)
    axes.plot([0, most], [0, most], color="#9aa0ab", linewidth=1, zorder=1)
    _lines(axes, reports, colours, lambda total, _: total.requests_per_s)
    axes.set_xlim(0, most * 1.05)
    axes.set_ylim(bottom=0)


def attainment_by_rate(axes: Axes, reports: Sequence[CaseReport], colours: Colours) -> None:
    """Draw the share within the SLO by requests/s offered."""
    scale = f"{reports[0].slo_scale:g}"
    dress(axes, f"Within {scale} x base latency", "requests/s offered", "")
    _lines(axes, reports, colours, lambda total, key: total.attainment[key])
    _percent(axes)
    axes.set_xlim(left=0)


def served_bars(axes: Axes, reports: Sequence[CaseReport], colours: Colours) -> None:
    """Draw requests/s served at one rate scale, a bar per system, and the offered rate."""
    dress(axes, "Served", "requests/s", "")
    rates = [report.total.requests_per_s for report in reports]
    offered = reports[0].total.offered_per_s
    rows = range(len(reports))
    axes.barh(rows, rates, color=[colours[report.system] for report in reports], height=0.7)
    axes.axvline(offered, color="#9aa0ab", linewidth=1)
    axes.text(offered, -0.75, f"offered {offered:.1f} ", ha="right", color="#6b7280", fontsize=8)
    axes.set_xlim(0, 1.12 * max(offered, *rates))
    for row, rate in enumerate(rates):
        axes.annotate(f"{rate:.1f}", (rate, row), (3, 0), textcoords="offset points", va="center")
    axes.set_yticks(rows, [report.system for report in reports])
    axes.set_ylim(len(reports) - 0.4, -1.1)
    axes.grid(visible=False, axis="y")


def attainment_by_slo(axes: Axes, reports: Sequence[CaseReport], colours: Colours) -> None:
    """Draw the share of requests within multiples of their base latency, at one rate scale."""
    dress(axes, "Within a multiple of the base latency", "SLO scale", "")
    for index, report in enumerate(reports):
        found = report.total.attainment
        scales = [float(key) for key in found]
        shares = [np.nan if share is None else share for share in found.values()]
        colour = colours[report.system]
        axes.plot(scales, shares, color=colour, linestyle=dash_of(index), marker="o", markersize=3)
    _logarithmic(axes)
    _percent(axes)


def served_by_model(axes: Axes, reports: Sequence[CaseReport], colours: Colours) -> None:
    """Draw the share of each model's demand that was served."""
    dress(axes, "Served, by model", "", "")
    models = by_rate(reports[0])
    width = 0.8 / len(reports)
    places = np.arange(len(models))
    for index, report in enumerate(reports):
        shares = [report.models[name].served_share or 0.0 for name in models]
        offset = (index - (len(reports) - 1) / 2) * width
        axes.bar(places + offset, shares, width * 0.92, color=colours[report.system])
    names = models if len(models) <= _MOST_NAMED else [str(place + 1) for place in places]
    if names == models:
        size = 8 if len(models) <= 6 else 7
        axes.set_xticks(places, names, rotation=25, ha="right", fontsize=size)
    else:
        axes.set_xticks(places, names, fontsize=7)
        axes.set_xlabel("models by rate, in the order of the legend below")
    _percent(axes)
    axes.grid(visible=False, axis="x")


def by_rate(report: CaseReport) -> list[str]:
    """Return the models by falling rate."""
    return sorted(report.models, key=lambda name: -report.models[name].offered_per_s)


def cdf(
    axes: Axes, reports: Sequence[CaseReport], colours: Colours, which: str, label: str
) -> None:
    """Draw the share of all requests by seconds; those missing at the end never finished.

    which: "ttft", "tpot" or "latency".
    """
    dress(axes, label, "seconds", "requests" if which == "ttft" else "")
    for index, report in enumerate(reports):
        spread: SpreadReport = getattr(report.total, which)
        if not spread.quantiles:
            continue
        finished = report.total.finished_share or 0.0
        shares = np.linspace(0, finished, len(spread.quantiles))
        seconds = np.maximum(spread.quantiles, 1e-4)
        axes.plot(seconds, shares, color=colours[report.system], linestyle=dash_of(index))
    _logarithmic(axes)
    _percent(axes)


def kv_over_time(axes: Axes, report: CaseReport, colours: Colours, top: float) -> None:
    """Draw the KV pools of one system by model, in the order of `colours`.

    top: end of the axis, a share of the pools.
    """
    use = report.use
    dress(axes, f"KV pools: {report.system}", "seconds", "")
    named = [name for name in colours if name in use.kv_over_time]
    times = np.concatenate(([0.0], use.times_s))
    parts = [np.concatenate(([0.0], use.kv_over_time[name])) for name in named]
    axes.stackplot(times, *parts, colors=[colours[name] for name in named], linewidth=0)
    mean = f"mean {use.kv:.0%}, SMs {use.sm:.0%}"
    axes.text(0.02, 0.97, mean, transform=axes.transAxes, va="top", fontsize=8)
    axes.set_xlim(0, times[-1])
    _percent(axes)
    axes.set_ylim(0, top)


def _lines(
    axes: Axes,
    reports: Sequence[CaseReport],
    colours: Colours,
    value: Callable[[GroupReport, str], Number],
) -> None:
    for index, (name, colour) in enumerate(colours.items()):
        points = sorted(
            (each.total.offered_per_s, value(each.total, f"{each.slo_scale:g}") or 0.0)
            for each in reports
            if each.system == name
        )
        places, values = zip(*points, strict=True) if points else ((), ())
        (line,) = axes.plot(places, values, color=colour, linestyle=dash_of(index), marker="o")
        line.set_markersize(4)


def _logarithmic(axes: Axes) -> None:
    """Make the x axis logarithmic, with labels at 1, 2 and 5 where there is room."""
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    if high < 300 * low:
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())


def _percent(axes: Axes) -> None:
    axes.set_ylim(0, 1.02)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.tick_params(axis="both", color=INK)
