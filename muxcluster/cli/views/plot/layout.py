"""Layout of a picture: places of nodes, title, colours of models."""

from collections.abc import Mapping, Sequence
from colorsys import hls_to_rgb
from dataclasses import dataclass

from muxcluster.cli.placing.reports import Judged
from muxcluster.cli.views.plan_summary import gap_text
from muxcluster.cli.views.plot.canvas import Canvas
from muxcluster.cli.views.words import percent_text, rate_text
from muxcluster.placement.plan import PlannedUnit
from muxcluster.placement.problem import Node

MARGIN = 0.25
TOP = 0.95
_BETWEEN = 0.1
_GOLDEN = 0.618034


@dataclass(frozen=True, slots=True)
class NodePosition:
    """Place of a node in a row of nodes."""

    node: Node
    column: float  # where its first GPU is, in widths of a GPU

    @property
    def end(self) -> float:
        """Column after its last GPU."""
        return self.column + self.node.num_gpus


def rows_of(nodes: Sequence[Node], most_columns: int) -> list[list[NodePosition]]:
    """Arrange nodes in rows of about `most_columns` GPUs; a node is never split."""
    rows: list[list[NodePosition]] = []
    for node in nodes:
        start = rows[-1][-1].end + _BETWEEN if rows else 0.0
        if not rows or start + node.num_gpus > most_columns * (1 + _BETWEEN):
            rows.append([])
            start = 0.0
        rows[-1].append(NodePosition(node, start))
    return rows


def runs_of(unit: PlannedUnit) -> list[tuple[int, int]]:
    """Return (first GPU, number) of each run of adjacent GPUs; our own plans have one run."""
    runs: list[tuple[int, int]] = []
    for gpu in sorted(unit.gpus):
        if runs and gpu == sum(runs[-1]):
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((gpu, 1))
    return runs


def colours_of(judged: Judged) -> Mapping[str, tuple[float, float, float]]:
    """Return colours by model; alphabetical neighbours get distant hues."""
    return {
        name: hls_to_rgb((0.58 + index * _GOLDEN) % 1, 0.60, 0.55)
        for index, name in enumerate(sorted(judged.demands))
    }


def lighter(colour: tuple[float, float, float]) -> tuple[float, float, float]:
    """The same hue, nearer to white."""
    red, green, blue = (1 - 0.45 * (1 - part) for part in colour)
    return red, green, blue


def draw_title(canvas: Canvas, judged: Judged) -> None:
    """Draw the title: served rate, and proven bound."""
    plan, offered = judged.plan, judged.offered
    gpus = sum(node.num_gpus for node in judged.problem.nodes)
    idle = sum(len(each.gpus) for each in judged.idle)
    served = f"{rate_text(plan.throughput)} of {rate_text(offered)} req/s"
    title = f"{served} ({percent_text(plan.throughput / offered)})"
    canvas.text((MARGIN, 0.30), title, 14, weight="bold")
    facts = (
        f"{len(judged.demands)} models on {gpus} GPUs ({idle} idle), {len(plan.units)} unit(s); "
        f"{plan.method}, {plan.objective}"
    )
    canvas.text((MARGIN, 0.56), facts, 9)
    if plan.bound is not None:
        canvas.text((MARGIN, 0.76), gap_text(judged), 9)
