"""The last lines of a plan: served rate, proven bound, unmet demand."""

from collections.abc import Iterator, Sequence

from rich.text import Text

from muxcluster.cli.placing.reports import Judged
from muxcluster.cli.views.words import gpus_text, percent_text, rate_text, seconds_text

_MOST_NAMED = 8
_SAME = 1e-6


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
    idle = "; ".join(f"{node}: {gpus_text(gpus)}" for node, gpus in judged.idle().items())
    yield Text(f"idle GPUs: {idle or 'none'}")
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
    """Say how far the score can be from the best plan at most."""
    plan = judged.plan
    if plan.bound is None:
        return f"bound: none for objective {plan.objective} with method {plan.method}"
    if plan.bound <= plan.score * (1 + _SAME):
        return f"bound {plan.bound:.6g}: proven, no plan is better"
    gap = max(1e-4, 1 - plan.score / plan.bound)
    return f"bound {plan.bound:.6g}: at most {gap:.2%} below the best possible plan"


def _listing(what: str, names: Sequence[str]) -> Text:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    listed = ", ".join(names[:_MOST_NAMED]) or "none"
    return Text(f"{what}: {listed}{more}", style="red" if names else "")
