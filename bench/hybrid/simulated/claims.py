"""Claims from the simulated cells: cuts, losses and attainment, beside the paper's."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from types import MappingProxyType

from bench.harness import Claim
from bench.hybrid.simulated.running import (
    Cell,
    Figure,
    batch_tokens_per_s,
    normalised_s,
    tpot_attainment,
    ttft_attainment,
)
from bench.hybrid.simulated.setups import APART, MEANS, OURS, Point
from muxcluster.sim.report.report import ClassesReport

# Share of interactive requests alone whose first token is in time, where they can be served.
_CALM = 0.9
# BROS, by lengths.
PUBLISHED: Mapping[str, Mapping[str, float]] = {
    "sharegpt": {
        "normalised_latency_cut_vs_fcfs": 0.742,
        "normalised_latency_cut_vs_round_robin": 0.543,
        "batch_throughput_loss_vs_fcfs": 0.113,
        "batch_throughput_loss_vs_round_robin": 0.088,
        "ttft_attainment": 0.466,
        "tpot_attainment": 0.655,
    },
    "lmsys": {
        "normalised_latency_cut_vs_fcfs": 0.696,
        "normalised_latency_cut_vs_round_robin": 0.258,
        "batch_throughput_loss_vs_fcfs": 0.177,
        "batch_throughput_loss_vs_round_robin": 0.152,
    },
}


def changes(
    cells: Sequence[Cell], other: str, figure: Figure, ours: str = OURS
) -> dict[Point, float]:
    """By point, what ours is less than the other by, as a share of the other."""
    found: Mapping[tuple[Point, str], float] = {
        (cell.point, cell.system): cell.mean(figure) for cell in cells
    }
    return {
        point: 1.0 - value / found[point, other]
        for (point, system), value in found.items()
        if system == ours and found[point, other] > 0
    }


def bearable(cells: Sequence[Cell]) -> list[Cell]:
    """Those of the points whose interactive requests alone keep their targets under `fcfs`.

    Beyond, whatever the batch class gets is taken from interactive requests that are never served.
    """
    calm = {
        (cell.point.setup, cell.point.lengths, cell.point.rate_per_s)
        for cell in cells
        if cell.system == "fcfs" and not cell.point.has_batch
        if cell.mean(ttft_attainment) >= _CALM
    }
    return [
        cell
        for cell in cells
        if (cell.point.setup, cell.point.lengths, cell.point.rate_per_s) in calm
    ]


def claims_of(
    cells: Sequence[Cell], published: Mapping[str, float] = MappingProxyType({})
) -> list[Claim]:
    """Means over the points with a batch load. published: what each is held against."""
    loaded = [cell for cell in cells if cell.point.has_batch]
    mine = [cell for cell in loaded if cell.system == OURS]

    def cut(other: str, figure: Figure) -> float:
        return fmean(changes(loaded, other, figure).values())

    values = {
        "normalised_latency_cut_vs_fcfs": cut("fcfs", normalised_s),
        "normalised_latency_cut_vs_round_robin": cut("round-robin", normalised_s),
        "batch_throughput_loss_vs_fcfs": cut("fcfs", batch_tokens_per_s),
        "batch_throughput_loss_vs_round_robin": cut("round-robin", batch_tokens_per_s),
        "ttft_attainment": fmean(cell.mean(ttft_attainment) for cell in mine),
        "tpot_attainment": fmean(cell.mean(tpot_attainment) for cell in mine),
    }
    return [Claim(name, value, "share", published.get(name)) for name, value in values.items()]


def apart_claims(cells: Sequence[Cell]) -> list[Claim]:
    """How many times as long the first token and the others take without bidirectional blocks, at
    the highest rate; none where that was not simulated. The paper: OPT-30B at 10 requests/s."""
    apart = [cell for cell in cells if cell.system == APART]
    if not apart:
        return []
    last = max(apart, key=lambda cell: cell.point.rate_per_s)
    (mine,) = (cell for cell in cells if (cell.point, cell.system) == (last.point, OURS))
    return [
        Claim("apart_ttft_ratio", last.mean(_ttft_s) / mine.mean(_ttft_s), "times", 1.23),
        Claim("apart_tpot_ratio", last.mean(_tpot_s) / mine.mean(_tpot_s), "times", 1.63),
    ]


def alone_claims(cells: Sequence[Cell]) -> list[Claim]:
    """Of interactive requests alone: means over the points; none without such cells."""
    alone = [cell for cell in cells if not cell.point.has_batch]
    if not alone:
        return []
    cut = fmean(changes(alone, "fcfs", normalised_s).values())
    served = fmean(1.0 - each for each in changes(alone, "fcfs", _served_per_s).values())
    return [
        Claim("alone_latency_cut_vs_fcfs", cut, "share", 0.294),
        Claim("alone_throughput_ratio_vs_fcfs", served, "times", 1.08),
    ]


def work_claims(cells: Sequence[Cell]) -> list[Claim]:
    """How many times the work of `fcfs` is done in the window: tokens of both classes, those of
    interactive requests as served times mean tokens of one; the mean over points with batch load.

    Where the interactive load is more than `fcfs` serves, batch tokens are lost to what it leaves
    undone; this tells whether work is lost, too.
    """
    tokens = sum(MEANS[cells[0].point.lengths])

    def done_per_s(classes: ClassesReport) -> float:
        return tokens * _served_per_s(classes) + batch_tokens_per_s(classes)

    loaded = [cell for cell in cells if cell.point.has_batch]
    ratio = fmean(1.0 - each for each in changes(loaded, "fcfs", done_per_s).values())
    return [Claim("all_tokens_ratio_vs_fcfs", ratio, "times")]


def all_claims(cells: Sequence[Cell], main: str) -> list[Claim]:
    """Of the main lengths, once more of the points that can be borne; then of the other lengths."""
    claims: list[Claim] = []
    for lengths in dict.fromkeys(cell.point.lengths for cell in cells):
        mine = [cell for cell in cells if cell.point.lengths == lengths]
        found = [*claims_of(mine, PUBLISHED[lengths]), *work_claims(mine)]
        if lengths != main:
            claims += _named(found, f"_{lengths}")
            continue
        calm = bearable(mine)
        claims += [*found, *(_named(claims_of(calm), "_bearable") if calm else ())]
        claims += [*apart_claims(mine), *alone_claims(mine)]
    return claims


def _named(claims: Sequence[Claim], ending: str) -> list[Claim]:
    return [replace(claim, name=claim.name + ending) for claim in claims]


def _ttft_s(classes: ClassesReport) -> float:
    return classes.interactive.ttft.mean or 0.0


def _tpot_s(classes: ClassesReport) -> float:
    return classes.interactive.tpot.mean or 0.0


def _served_per_s(classes: ClassesReport) -> float:
    return classes.interactive.requests_per_s
