"""Picture of a batch job: resources, density and KV over time, a row for each model and unit."""

import warnings
from collections.abc import Mapping
from io import BytesIO

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FuncFormatter, PercentFormatter
from numpy.typing import NDArray

from muxcluster.offline.predictor import UseOverTime
from muxcluster.sim.plot.style import STYLE, dress, model_colours

_WIDTH, _ROW = 13.0, 2.6
_LEAST_USE = 1e-3  # of memory bandwidth; below it a density says nothing
_COMPUTE, _MEMORY, _DENSITY, _HELD = model_colours(
    ("compute", "memory", "density", "held")
).values()


def picture(uses: Mapping[str, UseOverTime], form: str) -> bytes:
    """Return a file of the form "svg" or "png" with a row for each use, under its title.

    Equal uses give equal bytes. Raises ValueError without uses.
    """
    if not uses:
        raise ValueError("nothing to draw")
    buffer = BytesIO()
    with rc_context(STYLE), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a model's name may have letters the font lacks
        figure = Figure(
            (_WIDTH, _ROW * len(uses)), facecolor="white", layout=ConstrainedLayoutEngine()
        )
        rows = figure.subplots(len(uses), 3, squeeze=False)
        for axes, (title, use) in zip(rows, uses.items(), strict=True):
            _draw(axes, title, use)
        metadata = {"Date": None} if form == "svg" else None
        figure.savefig(buffer, format=form, dpi=110, metadata=metadata)
    return buffer.getvalue()


def _draw(row: NDArray[np.object_], title: str, use: UseOverTime) -> None:
    resources, density, held = row
    edges = use.bin_s * np.arange(len(use.compute) + 1, dtype=np.float64)
    dress(resources, title, "seconds", "used of compute and bandwidth")
    for label, values, colour in (
        ("compute", use.compute, _COMPUTE),
        ("memory bandwidth", use.memory, _MEMORY),
    ):
        resources.stairs(values, edges, color=colour, label=label, linewidth=1.4)
    resources.legend(loc="lower center", frameon=False, ncols=2, fontsize=8)
    _shares(resources, edges)
    dress(density, "Density: compute over memory", "seconds", "")
    is_told = use.memory > _LEAST_USE
    told = np.where(is_told, use.compute / np.where(is_told, use.memory, 1.0), np.nan)
    density.stairs(told, edges, color=_DENSITY, linewidth=1.4, baseline=None)
    density.axhline(1.0, color="#9aa0ab", linewidth=1, linestyle=(0, (2, 1)))
    density.set_yscale("symlog", linthresh=1.0)
    density.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    density.set_ylim(bottom=0)
    density.set_xlim(0, edges[-1])
    dress(held, "KV that live requests hold", "seconds", "")
    held.stairs(use.held, edges, color=_HELD, fill=True)
    _shares(held, edges)


def _shares(axes: Axes, edges: NDArray[np.float64]) -> None:
    axes.set_xlim(0, edges[-1])
    axes.set_ylim(0, 1.02)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
