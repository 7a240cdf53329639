"""Two models at once over one after the other, as a picture: a group of bars a pair of jobs."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure

from muxcluster.sim.plot.style import STYLE, dress, system_colours

_SHOWN = {
    "unaware": "at once, unaware of each other",
    "mixed": "at once, planned, mixed jobs",
    "side_by_side": "at once, planned, prefill beside decode",
    "permitted": "what the cost model permits",
}
_SIZE_INCHES = 8.4, 3.6


def draw(summaries: Mapping[str, Mapping[str, float]], path: Path) -> None:
    """Writes the picture, in the format of the file's ending: 1 is one after the other.

    summaries: by case, as `multi_model.Result.summary` gives them. Raises OSError.
    """
    with rc_context(STYLE):
        figure = Figure(_SIZE_INCHES, facecolor="white", layout="constrained")
        axes = figure.subplots()
        dress(axes, "Jobs of two models in one unit", "", "throughput over one after the other")
        places, width = np.arange(len(summaries)), 0.8 / len(_SHOWN)
        colours = system_colours(_SHOWN)
        for index, (name, label) in enumerate(_SHOWN.items()):
            heights = [each[name] for each in summaries.values()]
            offset = (index - (len(_SHOWN) - 1) / 2) * width
            bars = axes.bar(places + offset, heights, width, color=colours[name], label=label)
            axes.bar_label(bars, fmt="%.2f", fontsize=7)
        axes.axhline(1.0, color="#1f2430", linewidth=0.8)
        axes.set_xticks(places, list(summaries))
        figure.legend(loc="outside lower center", ncols=2, frameon=False)
        metadata = {"Date": None} if path.suffix == ".svg" else None
        figure.savefig(path, dpi=100, metadata=metadata)
