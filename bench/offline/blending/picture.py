"""BlendServe's evaluation as pictures: gains over the grid, and what is in use over time.

python bench/offline/blending/picture.py RECORD.json DIR
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.pop(0)  # the script's folder, whose modules would hide others
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from muxcluster.sim.plot.style import PALE, STYLE, dash_of, dress, system_colours

Row = Mapping[str, Any]
PAPER_RANGE, PAPER_MEAN = (0.14, 0.34), 0.225  # BlendServe's gains over DFS on its grid
GRID_FILE, USE_FILE = "blendserve_grid.svg", "blendserve_use.svg"
_USES = {
    "compute": "compute in use",
    "memory": "memory bandwidth in use",
    "held": "KV pool held",
}


def draw_grid(points: Sequence[Row], path: Path) -> None:
    """Writes the gains over density, a line a share of sharing. Equal points give equal files.

    points: `density`, `sharing` and `gain` (over the best rival) of each mixture. Raises OSError.
    """
    names = [f"{sharing:.0%} shared" for sharing in _sharings(points)]
    with rc_context(STYLE):
        figure = Figure((6.4, 3.8), facecolor="white", layout="constrained")
        axes = figure.subplots()
        dress(axes, "blend over the best rival", "density of the mixture", "throughput gained")
        paper = {"alpha": 0.5, "zorder": 0, "label": "BlendServe's range over DFS"}
        axes.axhspan(*PAPER_RANGE, color=PALE, **paper)
        axes.axhline(PAPER_MEAN, color="#8a909c", linewidth=0.8, label="and mean")
        colours = system_colours(names)
        for index, (name, sharing) in enumerate(zip(names, _sharings(points), strict=True)):
            mine = sorted(_of(points, sharing), key=lambda point: float(point["density"]))
            gains = [point["gain"] - 1 for point in mine]
            style = {"color": colours[name], "linestyle": dash_of(index), "label": name}
            axes.plot([point["density"] for point in mine], gains, marker="o", ms=3, **style)
        axes.axhline(0.0, color="#8a909c", linewidth=0.6)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        _finish(figure, axes, path)


def draw_use(uses: Mapping[str, Row], path: Path) -> None:
    """Writes what is in use over time, a panel for each of `_USES`, a line a system.

    uses: by system `bin_s` and the means of equal spans. Raises OSError.
    """
    with rc_context(STYLE):
        figure = Figure((10.0, 2.9), facecolor="white", layout="constrained")
        panels = figure.subplots(1, len(_USES))
        colours = system_colours(uses)
        for axes, (what, title) in zip(panels, _USES.items(), strict=True):
            dress(axes, title, "minutes", "")
            for index, (system, use) in enumerate(uses.items()):
                edges = np.arange(len(use[what]) + 1) * use["bin_s"] / 60
                style = {"color": colours[system], "linestyle": dash_of(index), "label": system}
                axes.stairs(use[what], edges, linewidth=1.1, **style)
            axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        _finish(figure, panels[0], path)


def _sharings(points: Sequence[Row]) -> list[float]:
    return sorted({point["sharing"] for point in points})


def _of(points: Sequence[Row], sharing: float) -> list[Row]:
    return [point for point in points if point["sharing"] == sharing]


def _finish(figure: Figure, axes: Axes, path: Path) -> None:
    handles, _ = axes.get_legend_handles_labels()
    figure.legend(handles=handles, loc="outside upper center", ncols=4, frameon=False)
    metadata = {"Date": None} if path.suffix == ".svg" else None
    figure.savefig(path, dpi=100, metadata=metadata)


def main() -> None:
    """Draw a record of `blendserve.py`."""
    record = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    draw_all(record, Path(sys.argv[2]))


def draw_all(record: Row, folder: Path) -> None:
    """Both pictures; no grid where none was run. Raises OSError."""
    if record["grid"]:
        draw_grid(record["grid"], folder / GRID_FILE)
    draw_use(record["use"], folder / USE_FILE)


if __name__ == "__main__":
    main()
