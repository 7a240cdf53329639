"""The detailed picture: nodes as rows, meshes as boxes with their models and resources."""

from collections.abc import Sequence
from dataclasses import dataclass

from muxcluster.cli.placing.reports import Judged
from muxcluster.cli.views.plot.canvas import INK, PALE, RED, Canvas, Colour, fitted
from muxcluster.cli.views.plot.layout import (
    MARGIN,
    TOP,
    NodePosition,
    colours_of,
    draw_title,
    lighter,
    rows_of,
    runs_of,
)
from muxcluster.cli.views.words import gpus_text, percent_text, rate_text
from muxcluster.placement.memory import parts_of, weight_bytes
from muxcluster.placement.plan import PlannedModel, PlannedUnit
from muxcluster.placement.problem import Node

_COLUMNS = 8
_GPU_WIDTH = 1.9
_GAP = 0.08
_NODE_HEADER, _UNIT_HEADER = 0.30, 0.30
_MODEL, _BAR = 0.23, 0.17
_NUM_BARS = 4
_MOST_MODELS = 16  # most models drawn in one unit; the others are counted
_LOAD, _SMS, _BANDWIDTH, _MEMORY = "#3a7d44", "#4c6fbf", "#8d5fb0", "#6b7280"


def draw_units(judged: Judged) -> Canvas:
    """Draw a cluster that is small enough to name its models."""
    return _Picture(judged).canvas


@dataclass(frozen=True, slots=True)
class _Box:
    left: float
    top: float
    width: float
    height: float


class _Picture:
    """Draws once, on creation."""

    def __init__(self, judged: Judged) -> None:
        self._judged = judged
        self._colours = colours_of(judged)
        widest = max(node.num_gpus for node in judged.problem.nodes)
        rows = rows_of(judged.problem.nodes, max(_COLUMNS, widest))
        columns = max(row[-1].end for row in rows)
        heights = [self._row_height(row) for row in rows]
        width = max(6.5, 2 * MARGIN + columns * _GPU_WIDTH)
        self.canvas = Canvas(width, TOP + sum(heights) + 0.45)
        draw_title(self.canvas, judged)
        top = TOP
        for row, height in zip(rows, heights, strict=True):
            for position in row:
                self._node(position, top, height - 0.18)
            top += height
        self._legend(top + 0.15)

    def _row_height(self, row: Sequence[NodePosition]) -> float:
        models = max(
            (
                min(len(unit.models), _MOST_MODELS) + (len(unit.models) > _MOST_MODELS)
                for position in row
                for unit in self._units(position.node)
            ),
            default=1,
        )
        bars = _NUM_BARS * _BAR
        return _NODE_HEADER + _UNIT_HEADER + models * _MODEL + bars + 0.18 + 2 * _GAP + 0.1

    def _units(self, node: Node) -> list[PlannedUnit]:
        return [unit for unit in self._judged.plan.units if unit.node == node.name]

    def _node(self, position: NodePosition, top: float, height: float) -> None:
        node, left = position.node, MARGIN + position.column * _GPU_WIDTH
        width = node.num_gpus * _GPU_WIDTH
        self.canvas.box((left, top), (width, height), fill="#f7f8fa", edge="#c4c8d0")
        name = fitted(f"{node.name}: {node.num_gpus} x {node.gpu.name}", width - 0.2, 9)
        self.canvas.text((left + 0.1, top + 0.16), name, 9, weight="bold")
        inside = (top + _NODE_HEADER, height - _NODE_HEADER - _GAP)
        for unit in self._units(node):
            for first, number in runs_of(unit):
                at = left + first * _GPU_WIDTH + _GAP / 2
                self._unit(unit, _Box(at, inside[0], number * _GPU_WIDTH - _GAP, inside[1]))
        idle = (each.gpus for each in self._judged.idle if each.node == node.name)
        for gpu in (gpu for gpus in idle for gpu in gpus):
            at = left + gpu * _GPU_WIDTH + _GAP / 2
            size = (_GPU_WIDTH - _GAP, inside[1])
            self.canvas.box((at, inside[0]), size, edge="#c4c8d0")
            middle = (at + size[0] / 2, inside[0] + size[1] / 2)
            self.canvas.text(middle, f"GPU {gpu}: idle", 8, "#8a909c", align="center")

    def _unit(self, unit: PlannedUnit, box: _Box) -> None:
        report = self._judged.reports.get(unit.id)
        is_over = report is not None and report.load > 1
        edge: Colour = RED if is_over else INK
        corner, size = (box.left, box.top), (box.width, box.height)
        self.canvas.box(corner, size, fill="white", edge=edge, line=1.8 if is_over else 0.9)
        where = f"{unit.id}  GPU {gpus_text(unit.gpus)}  tp {unit.tp}"
        title = fitted(where, box.width - 0.12, 7.5)
        middle = box.top + _UNIT_HEADER / 2
        self.canvas.text((box.left + 0.06, middle), title, 7.5, edge, weight="bold")
        bars = _Box(
            box.left + 0.06,
            box.top + box.height - _NUM_BARS * _BAR - 0.06,
            box.width - 0.12,
            _NUM_BARS * _BAR,
        )
        self._models(unit, _Box(bars.left, box.top + _UNIT_HEADER, bars.width, 0.0))
        self._bars(unit, bars)

    def _models(self, unit: PlannedUnit, box: _Box) -> None:
        models = sorted(unit.models, key=lambda model: -model.throughput)
        node = next(node for node in self._judged.problem.nodes if node.name == unit.node)
        scale = box.width / (unit.tp * node.gpu.memory_bytes)
        block_bytes = self._judged.block_bytes(unit)
        for row, model in enumerate(models[:_MOST_MODELS]):
            place = _Box(box.left, box.top + row * _MODEL, box.width, _MODEL - 0.03)
            quota = model.quota_blocks * block_bytes * scale
            demand = self._judged.demands[model.name]
            weights = weight_bytes(demand, parts_of(demand, unit.tp)) * scale
            self._model(model, place, weights, quota)
        if len(models) > _MOST_MODELS:
            at = (box.left, box.top + (_MOST_MODELS + 0.5) * _MODEL)
            self.canvas.text(at, f"and {len(models) - _MOST_MODELS} more models", 7)

    def _model(self, model: PlannedModel, box: _Box, weights: float, quota: float) -> None:
        """Draw a model. weights, quota: inches of memory."""
        colour = self._colours[model.name]
        corner = (box.left, box.top)
        self.canvas.box(corner, (box.width, box.height), fill=PALE)
        self.canvas.box(corner, (min(weights, box.width), box.height), fill=colour)
        kv = (box.left + weights, box.top)
        self.canvas.box(kv, (quota, box.height), fill=lighter(colour))
        middle = box.top + box.height / 2
        rate = f"{rate_text(model.throughput)}/s"
        taken = len(rate) * 0.075
        name = fitted(model.name, box.width - taken - 0.15, 7)
        self.canvas.text((box.left + 0.04, middle), name, 7)
        is_short = self._judged.served[model.name] < self._judged.demands[model.name].rate * 0.9999
        end = (box.left + box.width - 0.04, middle)
        self.canvas.text(end, rate, 7, RED if is_short else INK, align="right")

    def _bars(self, unit: PlannedUnit, box: _Box) -> None:
        report = self._judged.reports.get(unit.id)
        if report is None:
            self.canvas.text((box.left, box.top + _BAR / 2), "load not judged", 6.5, "#8a909c")
            return
        used = (report.weight_bytes + report.kv_bytes) / report.memory_bytes
        bars = (
            ("load", report.load, _LOAD),
            ("SM time", report.sms, _SMS),
            ("bandw.", report.bandwidth, _BANDWIDTH),
            ("memory", used, _MEMORY),
        )
        for row, (name, part, colour) in enumerate(bars):
            top, middle = box.top + row * _BAR, box.top + (row + 0.5) * _BAR - 0.015
            is_over = part > 1 + 1e-6
            left, width = box.left + 0.48, box.width - 0.48 - 0.42
            self.canvas.text((box.left, middle), name, 6.5)
            size = (width, _BAR - 0.06)
            self.canvas.box((left, top + 0.015), size, fill=PALE)
            filled = (min(1.0, part) * width, size[1])
            self.canvas.box((left, top + 0.015), filled, fill=RED if is_over else colour)
            end = (box.left + box.width, middle)
            self.canvas.text(end, percent_text(part), 6.5, RED if is_over else INK, align="right")

    def _legend(self, middle: float) -> None:
        blue = (0.3, 0.5, 0.8)
        at = MARGIN
        legend: tuple[tuple[Colour, str], ...] = (
            (blue, "weights"),
            (lighter(blue), "KV quota"),
            (PALE, "rest of the mesh's memory"),
            (RED, "asked for more than there is"),
        )
        for colour, text in legend:
            self.canvas.box((at, middle - 0.06), (0.2, 0.12), fill=colour)
            self.canvas.text((at + 0.27, middle), text, 7.5)
            at += 0.27 + len(text) * 0.068 + 0.25
