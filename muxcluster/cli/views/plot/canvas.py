"""Boxes and text in inches from the top left corner, on matplotlib without its global state."""

import warnings
from io import BytesIO

from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

Colour = str | tuple[float, float, float]
INK, PALE, RED = "#1f2430", "#e9ebef", "#c8102e"
_POINTS_PER_INCH = 72
# Mean width of a letter of the sans font relative to its size; wide enough for capitals.
_EM = 0.57
_DPI = 110
_STYLE = {"svg.fonttype": "none", "svg.hashsalt": "muxcluster", "font.family": "sans-serif"}


class Canvas:
    """A drawing of `width` x `height` inches."""

    def __init__(self, width: float, height: float) -> None:
        self._figure = Figure(figsize=(width, height), facecolor="white")
        self._axes = self._figure.add_axes((0, 0, 1, 1))
        self._axes.set_xlim(0, width)
        self._axes.set_ylim(height, 0)
        self._axes.axis("off")

    def box(
        self,
        corner: tuple[float, float],
        size: tuple[float, float],
        fill: Colour | None = None,
        edge: Colour | None = None,
        line: float = 0.8,
    ) -> None:
        """A rectangle; corner: its top left one. fill, edge: None leaves it out."""
        self._axes.add_patch(
            Rectangle(
                corner,
                *size,
                facecolor="none" if fill is None else fill,
                edgecolor="none" if edge is None else edge,
                linewidth=line,
            )
        )

    def text(
        self,
        at: tuple[float, float],
        text: str,
        size: float,
        colour: Colour = INK,
        align: str = "left",
        weight: str = "normal",
    ) -> None:
        """One line; at: its middle, at the end that `align` names."""
        self._axes.text(
            *at,
            text,
            fontsize=size,
            color=colour,
            ha=align,
            va="center_baseline" if align == "center" else "center",
            fontweight=weight,
            parse_math=False,
        )

    def content(self, form: str) -> bytes:
        """The file: form is "svg" or "png". Equal drawings give equal bytes."""
        buffer = BytesIO()
        with rc_context(_STYLE), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a model's name may have letters the font lacks
            metadata = {"Date": None} if form == "svg" else None
            self._figure.savefig(buffer, format=form, dpi=_DPI, metadata=metadata)
        return buffer.getvalue()


def fitted(text: str, width: float, size: float) -> str:
    """`text`, cut so that it takes at most `width` inches; "" where not even three letters fit."""
    most = int(width * _POINTS_PER_INCH / (_EM * size))
    if len(text) <= most:
        return text
    return f"{text[: most - 2]}.." if most >= 3 else ""
