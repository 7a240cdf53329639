"""Rows of `muxcluster top` from a snapshot of /v1/cluster/live: texts and numbers, no terminal."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from muxcluster.cli.views.words import gpus_text, percent_text, seconds_text

Snapshot = Mapping[str, Any]
Model = Mapping[str, Any]
UNKNOWN = "-"
UP = "up"
_LATEST_BINS = 4  # of a unit's SM shares: the last second
_MOST_SHARES = 4  # models and phases that are named for a unit
_BARS = " ▁▂▃▄▅▆▇█"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the table of models. value: what it is sorted by; None comes last."""

    title: str
    value: Callable[[Model], Any]
    text: Callable[[Model], str]
    is_largest_first: bool = True


def plain(text: object) -> str:
    """Return a text of the server without what a terminal would obey."""
    return "".join(each if each.isprintable() else "?" for each in str(text))


def _state(model: Model) -> str:
    return plain(", ".join((model["state"], *model["orders"])))


def _kv_share(model: Model) -> float | None:
    quota: int = model["quota_blocks"]
    return model["used_blocks"] / quota if quota else None


def _rate(value: float) -> str:
    return f"{value:.0f}" if value >= 100 or value == 0 else f"{value:.1f}"


def _seconds(value: float | None) -> str:
    return UNKNOWN if value is None else seconds_text(value)


def _share(value: float | None) -> str:
    return UNKNOWN if value is None else percent_text(value)


def _slowest(model: Model, name: str) -> str:
    """Return the 99th percentile of "ttft" or "tpot", beside the target."""
    slowest, targets = model["recent"][name]["p99_s"], model["targets"]
    if slowest is None or targets is None:
        return _seconds(slowest)
    return f"{seconds_text(slowest)} of {seconds_text(targets[f'{name}_s'])}"


COLUMNS = (
    Column("model", lambda m: m["name"], lambda m: plain(m["name"]), False),
    Column("state", _state, _state, False),
    Column("running", lambda m: m["running"], lambda m: str(m["running"])),
    Column("waiting", lambda m: m["waiting"], lambda m: str(m["waiting"])),
    Column("out/s", lambda m: m["output_tokens_per_s"], lambda m: _rate(m["output_tokens_per_s"])),
    Column("TTFT p99", lambda m: m["recent"]["ttft"]["p99_s"], lambda m: _slowest(m, "ttft")),
    Column("KV", _kv_share, lambda m: _share(_kv_share(m))),
    # from here on only where the terminal is wide enough
    Column("TPOT p99", lambda m: m["recent"]["tpot"]["p99_s"], lambda m: _slowest(m, "tpot")),
    Column(
        "in time",
        lambda m: m["recent"]["attainment"],
        lambda m: _share(m["recent"]["attainment"]),
        False,
    ),
    Column("in/s", lambda m: m["prompt_tokens_per_s"], lambda m: _rate(m["prompt_tokens_per_s"])),
)
_WIDTHS = (103, 112, 120)  # of the terminal, for one more of the last three columns each


def shown_columns(width: int) -> tuple[Column, ...]:
    """Return the columns of the table of models that a terminal has room for."""
    num_left_out = sum(width < each for each in _WIDTHS)
    return COLUMNS[: len(COLUMNS) - num_left_out]


def model_lines(model: Model) -> Iterator[str]:
    """Yield lines about one model over all its units."""
    recent, targets = model["recent"], model["targets"] or {}
    yield f"{_state(model)}; {model['running']} running, {model['waiting']} waiting"
    yield (
        f"{_rate(model['prompt_tokens_per_s'])} prompt and {_rate(model['output_tokens_per_s'])} "
        f"output tokens/s; KV: {_share(_kv_share(model))} of {model['quota_blocks']} blocks, "
        f"{model['cached_blocks']} cached"
    )
    for name in ("ttft", "tpot"):
        spread, target = recent[name], targets.get(f"{name}_s")
        text = (
            f"{name.upper()}: median {_seconds(spread['p50_s'])}, p99 {_seconds(spread['p99_s'])}"
        )
        yield text if target is None else f"{text}, target {seconds_text(target)}"
    yield (
        f"{recent['num_ended']} interactive requests ended within {recent['window_s']:g} s: "
        f"{recent['num_failed']} failed, {_share(recent['attainment'])} in time; "
        f"{recent['num_refused']} were refused"
    )


def sorted_models(models: Sequence[Model], column: Column) -> list[Model]:
    """Return the models by a column, equal ones as they were, those without a value last."""
    known = [model for model in models if column.value(model) is not None]
    unknown = [model for model in models if column.value(model) is None]
    return sorted(known, key=column.value, reverse=column.is_largest_first) + unknown


def unit_row(unit: Mapping[str, Any]) -> tuple[str, str, str, str, str, str]:
    """Return id, place, state, free KV, the SM shares of half a minute as bars and those now."""
    state = "draining" if unit["draining"] else unit["state"]
    reason = f" ({unit['reason']})" if unit["reason"] else ""
    place = UNKNOWN if unit["node"] is None else f"{unit['node']}: {gpus_text(unit['gpus'] or ())}"
    free = UNKNOWN
    if unit["num_blocks"]:
        free = f"{percent_text(unit['free_blocks'] / unit['num_blocks'])} of {unit['num_blocks']}"
    series = unit["sm"]["series"] if unit["sm"] else ()
    return (
        plain(unit["id"]),
        plain(place),
        plain(f"{state}{reason}"),
        free,
        share_bars(series),
        shares_now(series),
    )


def share_bars(series: Sequence[Mapping[str, Any]]) -> str:
    """Return the sum of SM shares as a bar for each second, the latest last."""
    if not series:
        return ""
    sums = [sum(shares) for shares in zip(*(each["shares"] for each in series), strict=True)]
    means = [sum(sums[i : i + 4]) / len(sums[i : i + 4]) for i in range(0, len(sums), 4)]
    return "".join(_BARS[min(len(_BARS) - 1, round(mean * (len(_BARS) - 1)))] for mean in means)


def shares_now(series: Sequence[Mapping[str, Any]]) -> str:
    """Return the largest SM shares of the last second: "chat prefill 50%, code decode 30%"."""
    now = [(sum(each["shares"][-_LATEST_BINS:]) / _LATEST_BINS, each) for each in series]
    largest = sorted(now, key=lambda pair: pair[0], reverse=True)[:_MOST_SHARES]
    return ", ".join(
        plain(f"{each['model']} {each['phase']} {percent_text(share)}")
        for share, each in largest
        if share >= 0.005
    )


def problems(snapshot: Snapshot) -> Iterator[str]:
    """Yield what is wrong, a line each."""
    cluster = snapshot["cluster"]
    if cluster["error"]:
        yield plain(f"controller: {cluster['error']}")
    for node in cluster["nodes"] or ():
        if not node["alive"]:
            yield plain(f"node {node['name']} is not reachable")
    if cluster["missing_units"]:
        yield plain(f"not running as planned: {', '.join(cluster['missing_units'])}")
    if cluster["unplaced"]:
        yield plain(f"no room for: {', '.join(cluster['unplaced'])}")
    for model in snapshot["models"]:
        recent = model["recent"]
        if recent["num_refused"]:
            count, window_s = recent["num_refused"], recent["window_s"]
            yield plain(f"{model['name']}: {count} requests refused within {window_s:g} s")


def batch_line(snapshot: Snapshot) -> str | None:
    """Return one line about batch jobs; None where there never was any."""
    batches = snapshot["batches"]
    if batches is None:
        return None
    states = [f"{count} {state}" for state, count in batches["by_status"].items() if count]
    lines = [f"{count} lines {result}" for result, count in batches["num_lines"].items()]
    return plain(f"batch jobs: {', '.join((*states, *lines))}")


def event_text(event: Mapping[str, Any]) -> str:
    """Return "chat on a-0.1: resident -> parked"."""
    if event["model"]:
        subject = f"{event['model']} on {event['unit']}"
    else:
        subject = f"unit {event['unit']}" if event["unit"] else "server"
    what = {"order": " order", "sharing": " SM sharing"}.get(event["what"], "")
    return plain(f"{subject}{what}: {event['before'] or 'new'} -> {event['after'] or 'gone'}")


MODEL_TITLES = (
    *("unit", "is", "weights", "order", "running", "waiting"),
    *("used", "batch", "cached", "quota", "lending requests", "req/s", "expected wait"),
)
_MODEL_NUMBERS = (
    *("running", "waiting"),
    *("used_blocks", "batch_blocks", "cached_blocks", "quota_blocks", "lent_requests"),
)


def rows_of_model(snapshot: Snapshot, name: str) -> Iterator[tuple[str, ...]]:
    """Yield a row for each unit of a model, as `MODEL_TITLES`; numbers of KV are blocks."""
    for unit in snapshot["units"]:
        for model in unit["models"]:
            if model["name"] == name:
                # of a unit that has not reported yet only the name is known
                yield (
                    plain(unit["id"]),
                    plain(unit["state"]),
                    plain(model.get("weights") or UNKNOWN),
                    plain(model.get("order") or UNKNOWN),
                    *(str(model.get(key, UNKNOWN)) for key in _MODEL_NUMBERS),
                    _rate(model["rate_per_s"]) if "rate_per_s" in model else UNKNOWN,
                    _seconds(model.get("expected_wait_s")),
                )
