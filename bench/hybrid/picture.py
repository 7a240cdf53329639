"""The evaluation as a picture: latency against batch throughput, and attainment over the rate.

python bench/hybrid/picture.py RECORD.json FILE.svg
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from matplotlib import rc_context
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from muxcluster.sim.plot.style import STYLE, dash_of, dress, system_colours

Row = Mapping[str, Any]
_MARKERS = ("o", "s", "^", "D", "v", "P")
_ROW_INCHES, _WIDTH_INCHES = 2.6, 10.0


def draw(rows: Sequence[Row], path: Path) -> None:
    """Writes the picture, in the format of the file's ending.

    rows: the record's `cells` of one kind of lengths: a line of three panels for every setup; those
    without batch load are left out. Equal rows give equal files. Raises OSError.
    """
    loaded = [row for row in rows if row["batch"]]
    setups = list(dict.fromkeys(row["setup"] for row in loaded))
    with rc_context({**STYLE, "font.size": 9}):
        size = _WIDTH_INCHES, _ROW_INCHES * len(setups) + 0.4
        figure = Figure(size, facecolor="white", layout="constrained")
        panels = figure.subplots(len(setups), 3, squeeze=False)
        for line, setup in enumerate(setups):
            mine = [row for row in loaded if row["setup"] == setup]
            _trade_off(panels[line, 0], mine, setup)
            _attainment(panels[line, 1], mine, "ttft_attainment", "first token in time")
            _attainment(panels[line, 2], mine, "tpot_attainment", "other tokens in time")
        handles: dict[str, Artist] = {}
        for axes in panels[:, 0]:
            found, labels = axes.get_legend_handles_labels()
            handles.update(zip(labels, found, strict=True))
        lines = list(handles.values())
        figure.legend(handles=lines, loc="outside upper center", ncols=6, frameon=False)
        metadata = {"Date": None} if path.suffix == ".svg" else None
        figure.savefig(path, dpi=100, metadata=metadata)


def _trade_off(axes: Axes, rows: Sequence[Row], setup: str) -> None:
    """A point a rate: down and to the right is better."""
    dress(axes, setup, "batch tokens/s", "interactive s/token")
    for style, mine in _lines(rows):
        places = [row["batch_tokens_per_s"][0] for row in mine]
        axes.plot(places, [row["normalised_s"][0] for row in mine], **style)
    axes.set_yscale("log")
    axes.set_xlim(left=0)


def _attainment(axes: Axes, rows: Sequence[Row], figure: str, title: str) -> None:
    dress(axes, title, "interactive requests/s", "")
    for style, mine in _lines(rows):
        means, halves = zip(*(row[figure] for row in mine), strict=True)
        rates = [row["rate_per_s"] for row in mine]
        axes.errorbar(rates, means, yerr=halves if any(halves) else None, **style)
    axes.set_ylim(-0.03, 1.06)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))


def _lines(rows: Sequence[Row]) -> list[tuple[dict[str, Any], list[Row]]]:
    """By system: how its line looks, and its rows by rate."""
    found = []
    for index, (system, colour) in enumerate(system_colours(row["system"] for row in rows).items()):
        style = {
            "color": colour,
            "linestyle": dash_of(index),
            "marker": _MARKERS[index % len(_MARKERS)],
            "markersize": 4,
            "linewidth": 1.4,
            "label": system,
        }
        mine = [row for row in rows if row["system"] == system]
        found.append((style, sorted(mine, key=lambda row: row["rate_per_s"])))
    return found


def main() -> None:
    """Draw a record of `bros.py`: rows of its first lengths."""
    record, target = map(Path, sys.argv[1:])
    cells = json.loads(record.read_text(encoding="utf-8"))["cells"]
    draw([row for row in cells if row["lengths"] == cells[0]["lengths"]], target)


if __name__ == "__main__":
    main()
