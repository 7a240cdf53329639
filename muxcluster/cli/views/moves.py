"""`--what-if` and `--from`: the changes from one plan to another, in lines."""

from collections.abc import Iterator

from rich.text import Text

from muxcluster.cli.views.words import gib_text, mesh_text, rate_text
from muxcluster.placement.plan import Plan
from muxcluster.placement.review.difference import Difference, Move

_MOST_LINES = 40


def difference_lines(before: Plan, after: Plan, found: Difference) -> Iterator[Text]:
    """Throughput, moves with their weights, units, losers."""
    yield Text(
        f"{rate_text(before.throughput)} -> {rate_text(after.throughput)} req/s "
        f"({after.throughput - before.throughput:+.2f})",
        style="bold",
    )
    lines = list(_changes(found))
    yield from lines[:_MOST_LINES]
    if len(lines) > _MOST_LINES:
        yield Text(f"  and {len(lines) - _MOST_LINES} more changes (all with --json)")
    yield Text(
        f"{len(found.moves)} load(s) of weights, {gib_text(found.load_bytes)} in all; "
        f"{len(found.kept)} model(s) stay where they are"
    )


def _changes(found: Difference) -> Iterator[Text]:
    if not (found.moves or found.removed or found.dropped or found.opened or found.closed):
        yield Text("  keep: nothing moves", style="green")
    moved = {move.model for move in found.moves}
    for move in found.moves:
        yield Text(f"  {_move_text(move)}")
    for name, unit in found.dropped:
        if name not in moved:
            yield Text(f"  drop: {name} leaves {mesh_text(unit)} and stays elsewhere")
    for name in found.removed:
        yield Text(f"  remove: {name}")
    for unit in found.opened:
        yield Text(f"  open: {mesh_text(unit)}, tp {unit.tp}")
    for unit in found.closed:
        yield Text(f"  close: {mesh_text(unit)}, tp {unit.tp}")
    for each in found.losers:
        rates = f"{rate_text(each.before)} -> {rate_text(each.after)} req/s"
        yield Text(f"  loses: {each.model} {rates}", style="red")


def _move_text(move: Move) -> str:
    load = f"{gib_text(move.load_bytes)} to load"
    if not move.before:
        return f"new: {move.model} on {mesh_text(move.to)}, {load}"
    if move.is_replica:
        return f"replica: {move.model} also on {mesh_text(move.to)}, {load}"
    homes = ", ".join(mesh_text(unit) for unit in move.before)
    return f"move: {move.model} from {homes} to {mesh_text(move.to)}, {load}"
