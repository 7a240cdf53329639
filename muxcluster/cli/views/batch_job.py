"""A batch job, its orders and its units, as lines and as JSON."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from rich.text import Text

from muxcluster.batch.plan.prediction import Comparison, Predicted
from muxcluster.cli.views.simulation import line_of
from muxcluster.cli.views.words import gib_text, percent_text, seconds_text
from muxcluster.offline.choice import JobSummary
from muxcluster.offline.predictor import Prediction, UseOverTime

_ORDERS = (
    "order",
    "makespan",
    "tokens/s",
    "saved",
    "of optimum",
    "compute",
    "memory",
    "KV held",
    "recomputed",
)
_UNITS = ("unit", "requests", "prompt tokens", "output tokens", "shared", "density", "makespan")


def plan_lines(found: Comparison) -> Iterator[Text]:
    """Describe the job, then each order, the fastest first, then each unit."""
    first = found.units[0]
    yield from _job_lines(found)
    if first.scale > 1:
        sample = first.choice.sample
        yield Text(f"predicted on {sample.num_requests} of them ({_summary_text(sample)})")
    yield from _table(_ORDERS, [_order_row(*each, first) for each in found.ranked()])
    if len(found.units) > 1:
        yield Text(
            f"divided over {len(found.units)} units: {percent_text(found.saved_share)} of what is "
            f"shared stays together, the last unit ends after {seconds_text(found.makespan_s)}",
            style="bold",
        )
        yield from _table(_UNITS, [_unit_row(unit, found.best) for unit in found.units])
    yield Text(f"order: {found.best}", style="bold")
    if (faster := found.faster()) is not None:
        yield Text(_faster_text(faster, first))


def _faster_text(faster: Predicted, first: Predicted) -> str:
    """Say in which other way of running its jobs the unit would end sooner, and how to get it."""
    order = faster.choice.best
    seconds = faster.makespan_s(order)
    gain = first.makespan_s(first.choice.best) / seconds - 1
    if len(faster.part.setting.unit.spec.workers) > 1:
        how, key = "prefill and decode side by side", "policy.partition mps or green"
    else:
        how, key = "mixed jobs", "policy.partition none"
    return f"{how} ({key}): {order} in {seconds_text(seconds)}, {percent_text(gain)} faster"


def _job_lines(found: Comparison) -> Iterator[Text]:
    whole, first = found.whole, found.units[0].part.setting
    yield Text(
        f"{whole.num_requests} requests for {first.spec.name}: {whole.prompt_tokens} prompt "
        f"tokens, {whole.output_tokens} output tokens",
        style="bold",
    )
    yield Text(f"{_summary_text(whole)}; {_unit_text(found)}")
    if found.num_known < whole.num_requests:
        num_taken = whole.num_requests - found.num_known
        yield Text(f"output lengths of {num_taken} are not known: their most is taken for them")
    if found.num_cut:
        yield Text(f"{found.num_cut} are longer than {first.spec.max_model_len} tokens of context")


def plan_content(found: Comparison) -> dict[str, Any]:
    """Return the plan with the use over time, for JSON.

    orders: on the first unit, for its part. makespan_s: of the whole part, or of the whole job.
    """
    first = found.units[0]
    setting = first.part.setting
    return {
        "model": setting.spec.name,
        "unit": setting.unit.spec.unit_id,
        "num_units": len(found.units),
        "lane": setting.unit.spec.scheduler.lane,
        "pool_bytes": setting.size_bytes,
        "num_known_outputs": found.num_known,
        "num_too_long": found.num_cut,
        "job": _summary(found.whole),
        "sample": _summary(first.choice.sample),
        "order": found.best,
        "orders": {name: _prediction(name, each, first) for name, each in found.ranked()},
        "makespan_s": found.makespan_s,
        "saved_share": found.saved_share,
        "other_ways": [
            {
                "lane": way.part.setting.unit.spec.scheduler.lane,
                "shares_sms": len(way.part.setting.unit.spec.workers) > 1,
                "pool_bytes": way.part.setting.size_bytes,
                "order": way.choice.best,
                "makespan_s": way.makespan_s(way.choice.best),
            }
            for way in found.others
        ],
        "units": [_unit(unit, found.best) for unit in found.units],
    }


def plan_uses(found: Comparison) -> dict[str, UseOverTime]:
    """Return each unit's use over time in the best order, stretched to its whole part, by title."""
    return {
        f"{unit.part.setting.spec.name} on {unit.part.setting.unit.spec.unit_id}, order "
        f"{found.best}": _stretched(unit, found.best)
        for unit in found.units
    }


def _stretched(unit: Predicted, order: str) -> UseOverTime:
    use = unit.choice.predictions[order].use
    return replace(use, bin_s=use.bin_s * unit.scale)


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[Text]:
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
    yield line_of(headings, widths, "bold")
    for row in rows:
        yield line_of(row, widths)


def _summary_text(summary: JobSummary) -> str:
    return f"{percent_text(summary.sharing)} of the prompts shared, density {summary.density:.2f}"


def _unit_text(found: Comparison) -> str:
    setting, num_units = found.units[0].part.setting, len(found.units)
    text = f"unit {setting.unit.spec.unit_id}, {gib_text(setting.size_bytes)} of KV"
    others = f", the first of {num_units} and its part of the job" if num_units > 1 else ""
    return f"{text}, lane {setting.unit.spec.scheduler.lane}{others}"


def _order_row(name: str, each: Prediction, first: Predicted) -> list[str]:
    use = each.use
    return [
        name,
        seconds_text(first.makespan_s(name)),
        f"{each.tokens_per_s:.0f}",
        percent_text(each.saving_ratio),
        percent_text(first.choice.sample.optimum_s / each.makespan_s),
        percent_text(float(use.compute.mean())),
        percent_text(float(use.memory.mean())),
        percent_text(float(use.held.mean())),
        str(each.recomputed_tokens),
    ]


def _unit_row(unit: Predicted, order: str) -> list[str]:
    summary = unit.part.summary
    return [
        unit.part.setting.unit.spec.unit_id,
        str(summary.num_requests),
        str(summary.prompt_tokens),
        str(summary.output_tokens),
        percent_text(summary.sharing),
        f"{summary.density:.2f}",
        seconds_text(unit.makespan_s(order)),
    ]


def _unit(unit: Predicted, order: str) -> dict[str, Any]:
    return {
        "unit": unit.part.setting.unit.spec.unit_id,
        "pool_bytes": unit.part.setting.size_bytes,
        **_summary(unit.part.summary),
        "makespan_s": unit.makespan_s(order),
    }


def _summary(summary: JobSummary) -> dict[str, Any]:
    return {
        "num_requests": summary.num_requests,
        "prompt_tokens": summary.prompt_tokens,
        "output_tokens": summary.output_tokens,
        "sharing": summary.sharing,
        "density": summary.density,
        "compute_s": summary.compute_s,
        "memory_s": summary.memory_s,
    }


def _prediction(name: str, each: Prediction, first: Predicted) -> dict[str, Any]:
    """Counts are of the sample."""
    return {
        "makespan_s": first.makespan_s(name),
        "sample_makespan_s": each.makespan_s,
        "tokens_per_s": each.tokens_per_s,
        "prompt_tokens": each.prompt_tokens,
        "output_tokens": each.output_tokens,
        "saved_tokens": each.saved_tokens,
        "recomputed_tokens": each.recomputed_tokens,
        "num_refused": each.num_refused,
        "use": {
            "bin_s": each.use.bin_s,
            "compute": each.use.compute.tolist(),
            "memory": each.use.memory.tolist(),
            "held": each.use.held.tolist(),
        },
    }
