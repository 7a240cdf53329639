"""Batch work of a plan: a block per unit that has some, and what it costs in the summary."""

from collections.abc import Iterator, Sequence

from rich.text import Text

from muxcluster.cli.placing.reports import Judged
from muxcluster.cli.views.words import percent_text, seconds_text
from muxcluster.placement.estimator.backlog import MOST
from muxcluster.placement.review.backlog import BatchModel, BatchUnit
from muxcluster.placement.review.headroom import Headroom

_HEADINGS = ("batch work", "tokens/day asked", "done", "TPOT p95 beside it (to SLO)")
_BAD = "bold red"
_DAY_S = 86_400.0
_SAME = 1e-6


def batch_lines(judged: Judged) -> Iterator[Text]:
    """Describe the batch work of each unit; nothing where none is asked. Batch work that is not
    done, and targets that are missed beside it, are coloured."""
    if not judged.batch:
        return
    rows = {unit.id: [_cells(model) for model in unit.models] for unit in judged.batch}
    every = [_HEADINGS, *(row for block in rows.values() for row in block)]
    widths = [max(len(row[column]) for row in every) for column in range(len(_HEADINGS))]
    yield _line(_HEADINGS, widths, "bold")
    for unit in judged.batch:
        yield _unit_line(unit)
        for model, row in zip(unit.models, rows[unit.id], strict=True):
            is_bad = model.done < model.asked * (1 - _SAME) or _is_late(model)
            yield _line(row, widths, _BAD if is_bad else "")
    yield Text()


def batch_summary(judged: Judged) -> Iterator[Text]:
    """Say how much of all batch work is done, and what that leaves for interactive requests."""
    if not judged.batch:
        return
    models = [model for unit in judged.batch for model in unit.models]
    asked, done = sum(model.asked for model in models), sum(model.done for model in models)
    yield Text(
        f"batch work: {_per_day(done)} of {_per_day(asked)} tokens/day "
        f"({percent_text(done / asked)}){_headroom_text(judged)}",
        style="red" if done < asked * (1 - _SAME) else "",
    )


def _headroom_text(judged: Judged) -> str:
    alone, beside = judged.headroom, judged.headroom_beside_batch
    if alone is None or beside is None:
        return ""
    return (
        f"; headroom {_factor(alone)} -> {_factor(beside)} while it is done: beyond that "
        f"({beside.unit}: {beside.limit}) it gives way"
    )


def _factor(found: Headroom) -> str:
    return f"{found.factor:.3g}" if found.factor >= 1 else "none"


def _unit_line(unit: BatchUnit) -> Text:
    line = Text(unit.id, style="bold cyan")
    more = "over 1000" if unit.capacity >= MOST else f"{unit.capacity:.2f}"
    line.append(f"  density {unit.density_without:.2f} -> {unit.density:.2f}", style="default")
    line.append(f"; can do {more} times what is asked", style="default")
    return line


def _cells(model: BatchModel) -> tuple[str, ...]:
    return (
        model.name,
        _per_day(model.asked) if model.is_asked else "-",
        f"{_per_day(model.done)} ({percent_text(model.done / model.asked)})"
        if model.is_asked
        else "-",
        f"{seconds_text(model.tpot_s)} -> {seconds_text(model.tpot_beside_s)}{_margin(model)}",
    )


def _margin(model: BatchModel) -> str:
    return "" if model.target_s is None else f" ({model.target_s / model.tpot_beside_s - 1:+.0%})"


def _is_late(model: BatchModel) -> bool:
    """Return whether batch work makes tokens late that are in time without it."""
    target = model.target_s
    return target is not None and model.tpot_s <= target < model.tpot_beside_s


def _per_day(tokens_per_s: float) -> str:
    return f"{tokens_per_s * _DAY_S:.3g}"


def _line(cells: Sequence[str], widths: Sequence[int], style: str = "") -> Text:
    first, *others = (
        cell.ljust(width) if column == 0 else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )
    return Text("  " + "  ".join((first, *others)), style=style)
