"""The last lines of a plan: served rate, proven bound, unmet demand."""

from collections.abc import Iterator, Sequence

from rich.text import Text

from muxcluster.cli.placing.reports import Judged
from muxcluster.cli.views.backlog import batch_summary
from muxcluster.cli.views.words import gpus_text, percent_text, rate_text, seconds_text
from muxcluster.placement.review.headroom import Headroom

_MOST_NAMED = 8
_SAME = 1e-6
_UNITS_OF_SCORE = {
    "throughput": "req/s",
    "weighted": "req/s times weight",
    "goodput": "req/s within the SLO",
}


def summary_lines(judged: Judged) -> Iterator[Text]:
    """Summarise the plan in a few lines, whatever the size of the cluster."""
    plan, offered = judged.plan, judged.offered
    part = percent_text(plan.throughput / offered)
    gpus = sum(len(unit.gpus) for unit in plan.units)
    yield Text(
        f"{plan.method}, objective {plan.objective}: {rate_text(plan.throughput)} of "
        f"{rate_text(offered)} req/s ({part}), score {plan.score:.6g}; {len(judged.served)} "
        f"model(s) in {len(plan.units)} unit(s) on {gpus} GPU(s); {plan.solve_seconds:.2f} s",
        style="bold",
    )
    yield Text(gap_text(judged))
    if judged.headroom is not None:
        yield Text(f"headroom: {_headroom_text(judged.headroom)}")
    yield from batch_summary(judged)
    for each in judged.idle:
        yield Text(f"idle GPUs: {each.node}: {gpus_text(each.gpus)}: {each.reason}")
    if not judged.idle:
        yield Text("idle GPUs: none")
    short = [
        f"{name} ({rate_text(served)} of {rate_text(judged.demands[name].rate)})"
        for name, served in judged.served.items()
        if served < judged.demands[name].rate * (1 - _SAME)
    ]
    yield _listing("below their rate", short)
    yield _listing("beyond their SLO", _late(judged))


def _late(judged: Judged) -> list[str]:
    """List late models, each with the worst of its units and of its two targets."""
    worst: dict[str, tuple[float, str]] = {}
    for report in judged.reports.values():
        for model in report.models:
            for kind, seconds, margin in (
                ("TTFT", model.ttft_s.high, model.ttft_margin),
                ("TPOT", model.tpot_s.high, model.tpot_margin),
            ):
                if margin is not None and margin < min(0.0, *worst.get(model.name, (0.0,))[:1]):
                    worst[model.name] = (margin, f"{kind} {seconds_text(seconds)} on {report.id}")
    return [f"{name} ({text})" for name, (_, text) in worst.items()]


def gap_text(judged: Judged) -> str:
    """Say what the bound limits, and how far from it the plan can be at most."""
    plan = judged.plan
    if plan.bound is None:
        return f"bound: none for objective {plan.objective} with method {plan.method}"
    unit = _UNITS_OF_SCORE.get(plan.objective, plan.objective)
    most = f"bound: by the same estimates no plan has more than {plan.bound:.6g} {unit}"
    if plan.bound <= plan.score * (1 + _SAME):
        return f"{most}; this one has as much"
    gap = max(1e-4, 1 - plan.score / plan.bound)
    return f"{most}; this one is at most {gap:.2%} below the best"


def _headroom_text(least: Headroom) -> str:
    if least.factor < 1:
        return (
            f"none; {least.unit} serves {percent_text(least.factor)} of its rates ({least.limit})"
        )
    return (
        f"all rates can grow to {least.factor:.3g} times these; then {least.unit} is first to be "
        f"short ({least.limit})"
    )


def _listing(what: str, names: Sequence[str]) -> Text:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    listed = ", ".join(names[:_MOST_NAMED]) or "none"
    return Text(f"{what}: {listed}{more}", style="red" if names else "")
