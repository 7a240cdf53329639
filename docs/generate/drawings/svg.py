"""A sheet on which boxes, texts, arrows and lines are drawn, as SVG."""

from collections.abc import Sequence
from html import escape

INK, PALE, LINE = "#1f2430", "#eef1f5", "#8a909c"
# Safe for the colour-blind (Okabe and Ito), with paler fills of the same hues.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
FILLS = ("#cfe4f3", "#f9dccb", "#cdeee2", "#f5e2ed", "#faeccb", "#ddf0fa")
_FONT = "font-family='Helvetica, Arial, sans-serif'"
Point = tuple[float, float]


class Sheet:
    """A drawing of a size in pixels, white, with a title for readers who cannot see it."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self.width, self.height, self._title = width, height, title
        self._parts: list[str] = []

    def box(
        self,
        corner: Point,
        size: Point,
        fill: str = PALE,
        stroke: str = LINE,
        radius: float = 4,
    ) -> None:
        """Draw a box from its upper left corner."""
        (x, y), (width, height) = corner, size
        self._parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{radius:g}" '
            f'fill="{fill}" stroke="{stroke}"/>'
        )

    def text(
        self,
        place: Point,
        words: str,
        size: float = 12,
        anchor: str = "start",
        *,
        fill: str = INK,
        bold: bool = False,
    ) -> None:
        """Write one line whose baseline is at `place`. anchor: start, middle or end."""
        weight = ' font-weight="bold"' if bold else ""
        self._parts.append(
            f'<text x="{place[0]:g}" y="{place[1]:g}" font-size="{size:g}" fill="{fill}" '
            f'text-anchor="{anchor}"{weight}>{escape(words)}</text>'
        )

    def labelled(self, corner: Point, size: Point, lines: Sequence[str], fill: str = PALE) -> None:
        """Draw a box with lines in its middle, the first one bold where there are several."""
        self.box(corner, size, fill)
        x = corner[0] + size[0] / 2
        first = corner[1] + size[1] / 2 + 4 - 7.5 * (len(lines) - 1)
        for index, line in enumerate(lines):
            self.text((x, first + 15 * index), line, 12, "middle", bold=index == 0 < len(lines) - 1)

    def line(
        self, points: Sequence[Point], stroke: str = LINE, width: float = 1.2, dash: str = ""
    ) -> None:
        """Draw a line through points."""
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        self._parts.append(
            f'<polyline points="{path}" fill="none" stroke="{stroke}" '
            f'stroke-width="{width:g}"{dashes}/>'
        )

    def arrow(self, points: Sequence[Point], stroke: str = INK) -> None:
        """Draw a line that ends in an arrow."""
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        self._parts.append(
            f'<polyline points="{path}" fill="none" stroke="{stroke}" stroke-width="1.4" '
            'marker-end="url(#end)"/>'
        )

    def dot(self, place: Point, fill: str, radius: float = 3.5) -> None:
        """Draw a dot."""
        self._parts.append(
            f'<circle cx="{place[0]:g}" cy="{place[1]:g}" r="{radius:g}" fill="{fill}"/>'
        )

    def svg(self) -> str:
        """Return the file."""
        marker = (
            '<defs><marker id="end" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
            f'markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" fill="{INK}"/></marker></defs>'
        )
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{self.width}" '
            f'height="{self.height}" viewBox="0 0 {self.width} {self.height}" role="img" {_FONT}>'
        )
        ground = f'<rect width="{self.width}" height="{self.height}" rx="6" fill="white"/>'
        parts = "\n".join([f"<title>{escape(self._title)}</title>", marker, ground, *self._parts])
        return f"{head}\n{parts}\n</svg>\n"
