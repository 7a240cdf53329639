"""The evaluation as a picture: requests/s served and share within the SLO, against the rate.

python bench/muxserve/picture.py RECORD.json FILE.svg
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from bench.muxserve.simulated.cases import SLO_SCALE, SYSTEMS
from muxcluster.sim.plot.style import PALE, STYLE, dash_of, dress, system_colours

Row = Mapping[str, Any]
_MARKERS = ("o", "s", "D", "^", "v")
_OURS = "muxserve"
_SIZE_INCHES = (9.0, 5.0)


def draw(rows: Sequence[Row], path: Path) -> None:
    """Writes the picture, in the format of the file's ending.

    rows: the record's `cells`: of every alpha a column, of every system a line. Equal rows give
    equal files. Raises OSError.
    """
    alphas = sorted({row["alpha"] for row in rows})
    with rc_context({**STYLE, "font.size": 10}):
        figure = Figure(_SIZE_INCHES, facecolor="white", layout="constrained")
        axes = figure.subplots(2, len(alphas), squeeze=False)
        for column, alpha in enumerate(alphas):
            mine = [row for row in rows if row["alpha"] == alpha]
            _throughput(axes[0, column], mine, f"popularity exponent α = {alpha:g}")
            _attainment(axes[1, column], mine)
        axes[0, 0].set_ylabel("served, requests/s")
        axes[1, 0].set_ylabel(f"within {SLO_SCALE:g} x time alone")
        handles, _ = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles=handles, loc="outside upper center", ncols=4, frameon=False)
        metadata = {"Date": None} if path.suffix == ".svg" else None
        figure.savefig(path, dpi=100, metadata=metadata)


def _throughput(axes: Axes, rows: Sequence[Row], title: str) -> None:
    dress(axes, title, "", "")
    offered = [row["offered_per_s"] for row in rows]
    span = [0.0, max(offered)]
    axes.plot(span, span, color="#9aa0ab", linewidth=1, linestyle=":", label="all that is offered")
    _lines(axes, rows, "requests_per_s")
    axes.set_xlim(0, 1.05 * max(offered))
    axes.set_ylim(0, 1.08 * max(offered))


def _attainment(axes: Axes, rows: Sequence[Row]) -> None:
    dress(axes, "", "offered, requests/s", "")
    axes.axhline(0.99, color=PALE, linewidth=1.5)
    _lines(axes, rows, "within_slo")
    axes.set_xlim(0, 1.05 * max(row["offered_per_s"] for row in rows))
    axes.set_ylim(0, 1.06)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))


def _lines(axes: Axes, rows: Sequence[Row], figure: str) -> None:
    """figure: (mean, half of its 95 % interval) in each row; the halves are drawn where known."""
    for index, (system, colour) in enumerate(system_colours(SYSTEMS).items()):
        mine = sorted(
            (row["offered_per_s"], *row[figure]) for row in rows if row["system"] == system
        )
        places, means, halves = zip(*mine, strict=True)
        axes.errorbar(
            places,
            means,
            yerr=halves if any(halves) else None,
            color=colour,
            linestyle=dash_of(index),
            marker=_MARKERS[index],
            markersize=5,
            label=f"{system} (ours)" if system == _OURS else system,
        )


def main() -> None:
    """Draw a record of `evaluation.py`."""
    record, target = map(Path, sys.argv[1:])
    draw(json.loads(record.read_text(encoding="utf-8"))["cells"], target)


if __name__ == "__main__":
    main()
