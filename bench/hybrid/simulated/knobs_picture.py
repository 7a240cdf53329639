"""The trade-off as a picture: latency cut over batch tokens kept, a panel a setup."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from muxcluster.sim.plot.style import STYLE, dress, system_colours

Row = Mapping[str, Any]
_SIZE_INCHES = 4.6, 3.6


def draw(rows: Sequence[Row], path: Path) -> None:
    """Writes the picture, in the format of the file's ending: up and to the right is better.

    rows: as `knobs.trades` gives them; the first word of a system is its kind, the second its
    setting, which stands beside the points of the first kind. Raises OSError.
    """
    setups = list(dict.fromkeys((row["setup"], row["rate_per_s"]) for row in rows))
    with rc_context({**STYLE, "font.size": 9}):
        width, height = _SIZE_INCHES
        figure = Figure((width * len(setups), height), facecolor="white", layout="constrained")
        panels = figure.subplots(1, len(setups), squeeze=False)[0]
        for axes, (setup, rate) in zip(panels, setups, strict=True):
            mine = [row for row in rows if row["setup"] == setup]
            dress(axes, f"{setup}, {rate:g} requests/s", "batch tokens kept", "latency cut")
            _points(axes, mine)
        handles, _ = panels[0].get_legend_handles_labels()
        figure.legend(handles=handles, loc="outside upper center", ncols=2, frameon=False)
        metadata = {"Date": None} if path.suffix == ".svg" else None
        figure.savefig(path, dpi=100, metadata=metadata)


def _points(axes: Axes, rows: Sequence[Row]) -> None:
    kinds = list(dict.fromkeys(row["system"].split()[0] for row in rows))
    for kind, colour in system_colours(kinds).items():
        mine = [row for row in rows if row["system"].split()[0] == kind]
        x, y = [row["batch_kept"] for row in mine], [row["latency_cut"] for row in mine]
        is_curve = kind == kinds[0]
        axes.plot(x, y, "o-" if is_curve else "s", color=colour, markersize=4, label=kind)
        for row, *place in zip(mine, x, y, strict=True) if is_curve else ():
            setting = row["system"].split()[1]
            axes.annotate(setting, place, (4, 3), textcoords="offset points", fontsize=8)
    axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
