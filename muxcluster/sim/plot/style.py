"""Style of the pictures of a comparison."""

from collections.abc import Iterable
from colorsys import hls_to_rgb
from itertools import chain

from matplotlib.axes import Axes

Colour = str | tuple[float, float, float]
INK, PALE = "#1f2430", "#d9dce2"
STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "muxcluster",
    "font.family": "sans-serif",
    "font.size": 9,
    "text.color": INK,
    "axes.edgecolor": "#8a909c",
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}
_SYSTEMS = ("#0b5fa5", "#d1495b", "#e09f1f", "#2a9d6f", "#7a4fa3", "#6b7280", "#0f8b8d", "#a05a2c")
_MODELS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#4a4a4a")
_DASHES: tuple[str | tuple[int, tuple[int, ...]], ...] = ("-", (0, (5, 2)), (0, (2, 1)))
_GOLDEN = 0.618034


def system_colours(names: Iterable[str]) -> dict[str, Colour]:
    """Return a colour for each name, in order of appearance; eight colours repeat."""
    known = list(dict.fromkeys(names))
    return {name: _SYSTEMS[index % len(_SYSTEMS)] for index, name in enumerate(known)}


def dash_of(index: int) -> str | tuple[int, tuple[int, ...]]:
    """Return a dash pattern, so that overlapping lines and equal colours can be told apart."""
    return _DASHES[index % len(_DASHES)]


def model_colours(names: Iterable[str]) -> dict[str, Colour]:
    """Return a colour for each name.

    The first eight are safe for the colour-blind (Okabe and Ito); later neighbours differ in hue.
    """
    known = list(dict.fromkeys(names))
    more = (_hue(index) for index in range(len(known)))
    return dict(zip(known, chain(_MODELS, more), strict=False))


def _hue(index: int) -> Colour:
    return hls_to_rgb((0.58 + index * _GOLDEN) % 1, 0.60 - 0.12 * (index // 8 % 3), 0.55)


def dress(axes: Axes, title: str, xlabel: str, ylabel: str) -> None:
    """Set title, labels and a pale grid; remove the box."""
    axes.set_title(title, loc="left", fontsize=10, fontweight="bold", color=INK)
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    axes.grid(color=PALE, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
