"""`--explain`: reasons for a model's place, in sentences, and a table of other places."""

from collections.abc import Iterator, Sequence

from rich.text import Text

from muxcluster.cli.placing.reports import Judged
from muxcluster.cli.views.words import gib_text, gpus_text, percent_text, rate_text
from muxcluster.placement.review.explain import Alternative, Explanation, Place

_MOST_PLACES = 5


def answer_lines(judged: Judged, found: Sequence[Explanation]) -> Iterator[Text]:
    """Explain one model on each of its units in `found`."""
    for each in found:
        yield from _unit_lines(each)
    name = found[0].model
    homes = sum(name in {model.name for model in unit.models} for unit in judged.plan.units)
    if homes > len(found):
        yield Text(f"and {name} is on {homes - len(found)} more units")


def _unit_lines(found: Explanation) -> Iterator[Text]:
    yield Text(f"{found.model} is on {_place_text(found.place)}", style="bold")
    yield Text(f"  load: {_load_text(found)}")
    yield Text(
        f"  fit: {gib_text(found.weight_bytes)} of weights, {gib_text(found.kv_bytes)} of KV quota"
    )
    yield Text(
        f"  served: {rate_text(found.served)} of {rate_text(found.offered)} req/s; with it the "
        f"unit serves {rate_text(found.marginal)} req/s more than without"
    )
    yield Text(f"  limit: {_limit_text(found)}")
    yield Text(f"  room: {_room_text(found)}")
    yield Text(f"  if it moved (now {rate_text(found.throughput)} req/s in all):")
    yield from _alternative_lines(found)
    if not found.alternatives:
        yield Text("    there is no other unit and no idle GPU")


def _alternative_lines(found: Explanation) -> Iterator[Text]:
    """List the best few places; equal ones share a line."""
    groups: dict[tuple[int, str, str], list[Place]] = {}
    for each in found.alternatives:
        key = (each.place.tp, each.place.gpu.name, _effect_text(found, each))
        groups.setdefault(key, []).append(each.place)
    for (_, _, effect), places in list(groups.items())[:_MOST_PLACES]:
        like = f" and {len(places) - 1} like it" if len(places) > 1 else ""
        yield Text(f"    {_place_text(places[0])}{like}: {effect}")
    left = sum(len(places) for places in list(groups.values())[_MOST_PLACES:])
    if left > 0:
        yield Text(f"    and {left} more place(s), none of them better")


def _place_text(place: Place) -> str:
    gpus = f"{place.node}: {gpus_text(place.gpus)}; {place.tp} x {place.gpu.name}"
    return f"{place.unit} ({gpus})" if place.unit else f"idle GPUs ({gpus})"


def _load_text(found: Explanation) -> str:
    load = f"{percent_text(found.load)} full"
    if not found.neighbours:
        return f"{load}, alone on its unit"
    others = ", ".join(found.neighbours)
    return f"{load}; {percent_text(found.load_without)} without it, with {others} only"


def _limit_text(found: Explanation) -> str:
    if found.load > 1:
        return f"{found.fullest}, asked for {percent_text(found.load)} of what there is"
    if found.served < found.offered * (1 - 1e-6):
        return "latency targets: more would be served beyond them"
    return f"none, all is served; fullest is the {found.fullest}"


def _room_text(found: Explanation) -> str:
    more = found.full_rate - found.offered
    if more > 0:
        return (
            f"{rate_text(more)} req/s more of it (up to {rate_text(found.full_rate)}) before the "
            "unit is overloaded"
        )
    if found.full_rate > 0:
        return f"none; at {rate_text(found.full_rate)} req/s of it the unit would serve all"
    return "none; its neighbours alone overload the unit"


def _effect_text(found: Explanation, each: Alternative) -> str:
    if each.throughput is None or each.load is None:
        return str(each.refusal)
    change = each.throughput - found.throughput
    same = abs(change) < 1e-6 * found.throughput
    effect = "as much in all" if same else f"{change:+.3g} req/s in all"
    return f"{effect} ({rate_text(each.throughput)}), load there {percent_text(each.load)}"
