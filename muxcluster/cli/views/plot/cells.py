"""The picture of a large cluster: a cell per GPU, coloured by its unit's load."""

from collections.abc import Mapping, Sequence

from muxcluster.cli.placing.reports import Judged
from muxcluster.cli.views.plot.canvas import INK, RED, Canvas, Colour, fitted
from muxcluster.cli.views.plot.layout import MARGIN, TOP, draw_title, runs_of
from muxcluster.placement.plan import PlannedUnit
from muxcluster.placement.problem import Node

_CELL = 0.20
_LABEL = 1.15
_ROW = 0.27
_WIDTH = 13.0
_IDLE, _UNKNOWN = "#ffffff", "#d9d2e9"
_LOW, _MIDDLE, _HIGH = (0.86, 0.93, 0.97), (0.26, 0.58, 0.76), (0.05, 0.19, 0.42)


def draw_cells(judged: Judged) -> Canvas:
    """Draw nodes in columns, one line each; each mesh shows its number of models."""
    nodes = judged.problem.nodes
    step = _LABEL + max(node.num_gpus for node in nodes) * _CELL + 0.35
    columns = max(1, int((_WIDTH - 2 * MARGIN) // step))
    lines = -(-len(nodes) // columns)
    canvas = Canvas(max(7.5, 2 * MARGIN + columns * step), TOP + lines * _ROW + 0.6)
    draw_title(canvas, judged)
    units: dict[str, list[PlannedUnit]] = {}
    for unit in judged.plan.units:
        units.setdefault(unit.node, []).append(unit)
    for number, node in enumerate(nodes):
        corner = (MARGIN + number // lines * step, TOP + number % lines * _ROW)
        _draw_node(canvas, judged, node, units.get(node.name, ()), corner)
    _draw_legend(canvas, TOP + lines * _ROW + 0.25)
    return canvas


def _draw_node(
    canvas: Canvas,
    judged: Judged,
    node: Node,
    units: Sequence[PlannedUnit],
    corner: tuple[float, float],
) -> None:
    left, top = corner
    label = fitted(f"{node.name} {node.gpu.name}", _LABEL - 0.05, 6)
    canvas.text((left, top + _CELL / 2), label, 6)
    left += _LABEL
    for gpu in range(node.num_gpus):
        canvas.box((left + gpu * _CELL, top), (_CELL, _CELL), fill=_IDLE, edge="#c4c8d0", line=0.4)
    for unit in units:
        fill = _colour(judged, unit)
        for first, number in runs_of(unit):
            at, size = (left + first * _CELL, top), (number * _CELL, _CELL)
            canvas.box(at, size, fill=fill, edge=INK, line=0.9)
            ink = INK if _is_light(fill) else "white"
            middle = (at[0] + size[0] / 2, top + _CELL / 2)
            canvas.text(middle, str(len(unit.models)), 5.5, ink, align="center")


def _colour(judged: Judged, unit: PlannedUnit) -> Colour:
    report = judged.reports.get(unit.id)
    return _UNKNOWN if report is None else load_colour(report.load)


def load_colour(load: float) -> Colour:
    """Return light to dark blue; red if more is asked for than can be served."""
    if load > 1:
        return RED
    low, high, part = (_LOW, _MIDDLE, 2 * load) if load < 0.5 else (_MIDDLE, _HIGH, 2 * load - 1)
    red, green, blue = (a + (b - a) * part for a, b in zip(low, high, strict=True))
    return red, green, blue


def _is_light(fill: Colour) -> bool:
    return isinstance(fill, str) and fill != RED or not isinstance(fill, str) and sum(fill) > 1.6


def _draw_legend(canvas: Canvas, middle: float) -> None:
    legend: Mapping[str, Colour] = {
        "idle": _IDLE,
        "load 0": load_colour(0.0),
        "0.5": load_colour(0.5),
        "1": load_colour(1.0),
        "above 1": RED,
    }
    at = MARGIN
    for text, fill in legend.items():
        canvas.box((at, middle - _CELL / 2), (_CELL, _CELL), fill=fill, edge=INK, line=0.6)
        canvas.text((at + _CELL + 0.07, middle), text, 8)
        at += _CELL + 0.3 + len(text) * 0.075
    canvas.text((at + 0.1, middle), "outlined: a mesh, with its number of models", 8)
