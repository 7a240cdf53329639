"""The record of bench/dense.py as a picture: completed queries and cache memory over time.

python bench/rebatching/picture.py RECORD.json FILE.svg
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.pop(0)  # the script's folder, whose http.py would hide Python's
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from muxcluster.sim.plot.style import STYLE, dash_of, dress, system_colours


def draw(curves: Mapping[str, Mapping[str, Any]], path: Path) -> None:
    """Writes the picture, in the format of the file's ending.

    curves: the record's, by case and method; a row of two panels for every case. Equal curves give
    equal files. Raises OSError.
    """
    with rc_context({**STYLE, "font.size": 9}):
        size = 9.0, 2.7 * len(curves) + 0.5
        figure = Figure(size, facecolor="white", layout="constrained")
        panels = figure.subplots(len(curves), 2, squeeze=False)
        for (left, right), (case, methods) in zip(panels, curves.items(), strict=True):
            _completed(left, f"batch {case.replace('_long', ', mixed lengths')}", methods)
            _memory(right, methods)
        lines, labels = panels[0, 0].get_legend_handles_labels()
        figure.legend(lines, labels, loc="outside upper center", ncols=4, frameon=False)
        metadata = {"Date": None} if path.suffix == ".svg" else None
        figure.savefig(path, dpi=100, metadata=metadata)


def _completed(axes: Axes, title: str, methods: Mapping[str, Any]) -> None:
    dress(axes, title, "seconds", "completed queries")
    for index, (method, colour) in enumerate(system_colours(methods).items()):
        ends = [0.0, *methods[method]["ended_s"]]
        look = {"color": colour, "linestyle": dash_of(index), "label": method}
        axes.step(ends, range(len(ends)), where="post", **look)
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)


def _memory(axes: Axes, methods: Mapping[str, Any]) -> None:
    dress(axes, "cache memory, padding included", "seconds", "MB")
    for index, (method, colour) in enumerate(system_colours(methods).items()):
        points = methods[method]["kv_mb"]
        if points:
            times, held = zip(*points, strict=True)
            axes.plot(times, held, color=colour, linestyle=dash_of(index), linewidth=1.2)
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)


def main() -> None:
    """Draw the cases of mixed lengths of a record."""
    source, target = map(Path, sys.argv[1:])
    curves = json.loads(source.read_text(encoding="utf-8"))["curves"]
    draw({case: curves[case] for case in curves if case.endswith("_long")}, target)


if __name__ == "__main__":
    main()
