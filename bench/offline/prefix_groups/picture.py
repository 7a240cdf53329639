"""The valleys as a picture: tokens of a step over time.

python bench/offline/prefix_groups/picture.py RECORD.json FILE.svg
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from matplotlib import rc_context
from matplotlib.figure import Figure

from muxcluster.sim.plot.style import STYLE, dress, system_colours

_WIDTH_INCHES, _ROW_INCHES = 9.0, 1.7


def draw(record: Mapping[str, Any], path: Path) -> None:
    """Writes the picture, in the format of the file's ending.

    record: `valleys` of a record of `batchllm.py`: a panel a system. Raises OSError.
    """
    bin_s, systems = record["bin_s"], record["systems"]
    with rc_context(STYLE):
        size = _WIDTH_INCHES, _ROW_INCHES * len(systems) + 0.4
        figure = Figure(size, facecolor="white", layout="constrained")
        panels = figure.subplots(len(systems), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
        colours = system_colours(systems)
        for axes, (name, line) in zip(panels, systems.items(), strict=True):
            times = [bin_s * at for at in range(len(line["mean"]) + 1)]
            dress(axes, name, "", "tokens a step")
            style = {"color": colours[name], "linewidth": 1.2}
            axes.stairs(line["mean"], times, label="mean", **style)
            axes.stairs(line["least"], times, fill=True, alpha=0.25, color=colours[name])
            axes.axvline(line["until_cool_down_s"], color="#8a909c", linestyle=":", linewidth=1)
        panels[0].set_ylim(bottom=0)
        panels[0].set_xlim(left=0)
        panels[-1].set_xlabel("seconds; line: mean, area: least; dotted: the last prompt is done")
        metadata = {"Date": None} if path.suffix == ".svg" else None
        figure.savefig(path, dpi=100, metadata=metadata)


def main() -> None:
    """Draw a record."""
    record, target = map(Path, sys.argv[1:])
    draw(json.loads(record.read_text(encoding="utf-8"))["valleys"], target)


if __name__ == "__main__":
    main()
