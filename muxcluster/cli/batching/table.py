"""A batch job and its orders, in lines and as JSON."""

from collections.abc import Iterator
from typing import Any

from rich.text import Text

from muxcluster.cli.batching.planning import Comparison
from muxcluster.cli.placing.words import gib_text, percent_text, seconds_text
from muxcluster.cli.simulating.table import line_of
from muxcluster.offline.choice import Nature
from muxcluster.offline.predictor import Prediction

_HEADINGS = (
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


def plan_lines(found: Comparison) -> Iterator[Text]:
    """What the job is like, then a line an order, the fastest first."""
    whole, sample, setting = found.whole, found.choice.sample, found.setting
    yield Text(
        f"{whole.num_requests} requests for {setting.spec.name}: {whole.prompt_tokens} prompt "
        f"tokens, {whole.output_tokens} output tokens",
        style="bold",
    )
    yield Text(f"{_nature_text(whole)}; {_unit_text(found)}")
    if found.num_known < whole.num_requests:
        num_taken = whole.num_requests - found.num_known
        yield Text(f"output lengths of {num_taken} are not known: their most is taken for them")
    if found.num_cut:
        yield Text(
            f"{found.num_cut} are longer than {setting.spec.max_model_len} tokens of context"
        )
    if found.scale > 1:
        yield Text(f"predicted on {sample.num_requests} of them ({_nature_text(sample)})")
    rows = [_row(name, each, found) for name, each in _ranked(found)]
    widths = [max(len(row[i]) for row in (_HEADINGS, *rows)) for i in range(len(_HEADINGS))]
    yield line_of(_HEADINGS, widths, "bold")
    for row in rows:
        yield line_of(row, widths)
    yield Text(f"order: {found.choice.best}", style="bold")


def plan_content(found: Comparison) -> dict[str, Any]:
    """The same and the use over time, for JSON. makespan_s: of the whole job."""
    return {
        "model": found.setting.spec.name,
        "unit": found.setting.unit.spec.unit_id,
        "num_units": found.setting.num_units,
        "lane": found.setting.unit.spec.scheduler.lane,
        "pool_bytes": found.setting.size_bytes,
        "num_known_outputs": found.num_known,
        "num_too_long": found.num_cut,
        "job": _nature(found.whole),
        "sample": _nature(found.choice.sample),
        "order": found.choice.best,
        "orders": {name: _prediction(each, found) for name, each in _ranked(found)},
    }


def _ranked(found: Comparison) -> list[tuple[str, Prediction]]:
    return sorted(found.choice.predictions.items(), key=lambda item: item[1].makespan_s)


def _nature_text(nature: Nature) -> str:
    return f"{percent_text(nature.sharing)} of the prompts shared, density {nature.density:.2f}"


def _unit_text(found: Comparison) -> str:
    setting = found.setting
    text = f"unit {setting.unit.spec.unit_id}, {gib_text(setting.size_bytes)} of KV"
    others = f", one of {setting.num_units} that serve it" if setting.num_units > 1 else ""
    return f"{text}, lane {setting.unit.spec.scheduler.lane}{others}"


def _row(name: str, each: Prediction, found: Comparison) -> list[str]:
    use = each.use
    return [
        name,
        seconds_text(each.makespan_s * found.scale),
        f"{each.tokens_per_s:.0f}",
        percent_text(each.saving_ratio),
        percent_text(found.choice.sample.optimum_s / each.makespan_s),
        percent_text(float(use.compute.mean())),
        percent_text(float(use.memory.mean())),
        percent_text(float(use.held.mean())),
        str(each.recomputed_tokens),
    ]


def _nature(nature: Nature) -> dict[str, Any]:
    return {
        "num_requests": nature.num_requests,
        "prompt_tokens": nature.prompt_tokens,
        "output_tokens": nature.output_tokens,
        "sharing": nature.sharing,
        "density": nature.density,
        "compute_s": nature.compute_s,
        "memory_s": nature.memory_s,
    }


def _prediction(each: Prediction, found: Comparison) -> dict[str, Any]:
    """Counts are of the sample; where it is a part, the makespan is extended by the work left."""
    return {
        "makespan_s": each.makespan_s * found.scale,
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
