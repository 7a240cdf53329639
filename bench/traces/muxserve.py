"""Rates of MuxServe's published experiments: ChatLMSYS, the arena, the planner's points."""

from dataclasses import dataclass
from pathlib import Path

from muxcluster.core.errors import ConfigError
from muxcluster.workload.files.rows import Row, csv_rows, json_document

CHATLMSYS_PROMPT_TOKENS = 100.2
CHATLMSYS_OUTPUT_TOKENS = 261.3  # Mean lengths of ChatLMSYS, as the release says
SHAREGPT_PROMPT_TOKENS = 161
# Mean lengths of the synthetic experiments (ShareGPT's); MuxServe's planner takes 161 and 337.
SHAREGPT_OUTPUT_TOKENS = 338


@dataclass(frozen=True, slots=True)
class ModelRate:
    """One served model."""

    name: str  # as the plans call it
    shape: str  # its kind, such as llama-7b
    rate_per_s: float


def read_chatlmsys_rates(path: Path, condense: int) -> tuple[ModelRate, ...]:
    """The 16 models of `chatlmsys_rates_*.csv`, time condensed by `condense` (a column's number).

    The columns are proportional to the factor, so any factor from 1 up is scaled from the first.
    Raises ConfigError, ValueError for a factor below 1.
    """
    if condense < 1:
        raise ValueError(f"time is condensed by 1 at least, found {condense}")
    found = []
    for row in csv_rows(path, ("llm", "model")):
        column, factor = _nearest_column(row, condense)
        rate = row.number(column) * condense / factor
        found.append(ModelRate(row.text("llm"), row.text("model"), rate))
    return tuple(found)


def read_arena_rates(path: Path) -> dict[str, float]:
    """Mean requests/s by model of `lmsys_arena_model_rates_*.csv`. Raises ConfigError."""
    column = "mean_rate_rps_over_125_days"
    rows = csv_rows(path, ("model", column))
    return {row.text("model"): row.number(column) for row in rows}


def read_point_rates(path: Path, point: str) -> tuple[ModelRate, ...]:
    """The models of one point of `planner_points.json`. Raises ConfigError; for a name that is not
    there it lists those that are."""
    document = json_document(path)
    if not isinstance(document, list) or not all(isinstance(item, dict) for item in document):
        raise ConfigError(path, "", "expected a list of points")
    points = {item.get("name"): item for item in document}
    if point not in points:
        names = ", ".join(map(str, points))
        raise ConfigError(path, point, f"expected one of {names}")
    models = points[point].get("models")
    if not isinstance(models, list) or not all(isinstance(item, dict) for item in models):
        raise ConfigError(path, f"{point}.models", "expected a list of models")
    rows = [Row(path, None, item) for item in models]
    return tuple(ModelRate(row.text("name"), row.text("model"), row.number("rate")) for row in rows)


def _nearest_column(row: Row, condense: int) -> tuple[str, int]:
    """The column of this factor, else the first, and its factor."""
    prefix = "rate_rps_condense"
    factors = [
        int(name.removeprefix(prefix))
        for name in row.fields
        if name.startswith(prefix) and name.removeprefix(prefix).isdecimal()
    ]
    if not factors or 0 in factors:
        row.fail(prefix, f"expected columns {prefix}N, found {list(row.fields)}")
    factor = condense if condense in factors else factors[0]
    return f"{prefix}{factor}", factor
