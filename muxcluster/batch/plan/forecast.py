"""Predicts what the job in a file would take on the units that run now; nothing is started."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from muxcluster.batch.plan.asked import Served, job_of, read_asked
from muxcluster.batch.plan.prediction import (
    Comparison,
    Predicted,
    PredictionOptions,
    compare_job,
)
from muxcluster.batch.plan.survey import survey
from muxcluster.batch.store.intake import Limits
from muxcluster.sim.batch.together import OrderedJob, compare_together

MOST_LINES = 8192  # tokenised; a longer job is predicted on runs of lines with like prompts
_RUNS = 4
_SAMPLED = 500  # requests of a unit on which orders are compared
_SEED = 0


@dataclass(frozen=True, slots=True)
class AskedForecast:
    """A job and where it would run. order: a name, or auto."""

    file: Path
    endpoint: str | None
    limits: Limits
    served: Served
    order: str


@dataclass(frozen=True, slots=True, eq=False)
class _ModelForecast:
    """The lines of one model."""

    comparison: Comparison
    num_lines: int
    are_known: bool
    scale: float  # the job's work as a multiple of that of the lines read

    def duration_s(self, unit: Predicted) -> float:
        """Seconds of the unit's part, alone on the unit."""
        return unit.makespan_s(self.comparison.best) * self.scale

    def by_unit(self) -> dict[str, float]:
        """Return the seconds of each unit."""
        return {
            unit.part.setting.unit.spec.unit_id: self.duration_s(unit)
            for unit in self.comparison.units
        }

    @property
    def cached_share(self) -> float:
        """Share of the prompt tokens that the units are predicted to find in their caches."""
        found = total = 0.0
        for unit in self.comparison.units:
            tokens = unit.part.summary.prompt_tokens
            found += unit.choice.predictions[self.comparison.best].saving_ratio * tokens
            total += tokens
        return found / total


def forecast(asked: AskedForecast) -> dict[str, Any]:
    """Return the job's size, its prefix hits and its duration as JSON.

    The units run nothing else. Text is tokenised; where the job has more than `MOST_LINES`
    requests of a model, on a part of them, whose figures are extended to all. Raises OSError,
    LoadError; InvalidValue as `survey`.
    """
    served = asked.served
    names = [each.name for each in served.models]
    found = survey(asked.file, asked.endpoint, names, asked.limits)
    models: dict[str, _ModelForecast] = {}
    homeless: dict[
        str, int
    ] = {}  # lines of models that no unit serves now, or whose requests are wrong
    for model, table in found.tables.items():
        lines = table.sample(MOST_LINES, _RUNS)
        settings = served.settings.get(model, ())
        read = read_asked(asked.file, lines, served, {})
        lines_read = read.of_model.get(model, ())
        if not settings or not lines_read:
            homeless[model] = len(table)
            continue
        num_known = sum(each.is_known for each in lines_read)
        are_known = num_known == len(lines_read)
        options = PredictionOptions(asked.order, _SAMPLED, _SEED, are_known)
        comparison = compare_job(job_of(lines_read, settings[0]), settings, options, num_known)
        scale = table.weight / sum(line.weight for line in lines)
        models[model] = _ModelForecast(comparison, len(table), are_known, scale)
    contents = [_model(model, each) for model, each in models.items()]
    return {
        "num_lines": found.num_lines,
        "num_bad": found.num_bad,
        "bad_lines": found.bad,
        "duration_s": _duration_s(models),
        **{
            name: sum(each[name] for each in contents)
            for name in ("prompt_tokens", "cached_tokens", "output_tokens")
        },
        "models": contents,
        "not_predicted": homeless,
    }


def _duration_s(models: Mapping[str, _ModelForecast]) -> float:
    """Return the seconds until the last unit has ended.

    Models that share a unit run there at once or in turn, whichever is predicted to be faster.
    """
    of_unit: dict[str, float] = defaultdict(float)
    for each in models.values():
        for unit_id, seconds in each.by_unit().items():
            of_unit[unit_id] += seconds
    sharing: dict[frozenset[str], list[str]] = defaultdict(list)
    for model, each in models.items():
        sharing[frozenset(each.by_unit())].append(model)
    for unit_ids, names in sharing.items():
        if len(names) > 1:
            share = _joint_share([models[name] for name in names], names)
            for unit_id in unit_ids:
                of_unit[unit_id] *= share
    return max(of_unit.values(), default=0.0)


def _joint_share(models: Sequence[_ModelForecast], names: Sequence[str]) -> float:
    """Return the seconds of all models at once over those in turn, at most 1."""
    first = [each.comparison.units[0] for each in models]
    unit = first[0].part.setting.unit
    if any(each.part.setting.unit.spec != unit.spec for each in first):
        return 1.0
    jobs = {
        name: OrderedJob(each.part.job, model.comparison.best, model.are_known)
        for name, model, each in zip(names, models, first, strict=True)
    }
    found = compare_together(unit, jobs, _SAMPLED)
    return min(1.0, found.joint_s / found.one_after_other_s)


def _model(name: str, found: _ModelForecast) -> dict[str, Any]:
    comparison, scale = found.comparison, found.scale
    whole = comparison.whole
    prompt = whole.prompt_tokens * scale
    return {
        "model": name,
        "num_lines": found.num_lines,
        "num_read": whole.num_requests,
        "num_known_outputs": comparison.num_known,
        "prompt_tokens": round(prompt),
        "cached_tokens": round(prompt * found.cached_share),
        "output_tokens": round(whole.output_tokens * scale),
        "sharing": whole.sharing,
        "density": whole.density,
        "order": comparison.best,
        "duration_s": max(found.by_unit().values()),
        "units": [_unit(unit, found) for unit in comparison.units],
    }


def _unit(unit: Predicted, found: _ModelForecast) -> dict[str, Any]:
    """Return a unit's part with its use over time, stretched to the whole part."""
    prediction = unit.choice.predictions[found.comparison.best]
    seconds, use = found.duration_s(unit), prediction.use
    return {
        "unit": unit.part.setting.unit.spec.unit_id,
        "duration_s": seconds,
        "use": {
            "bin_s": use.bin_s * (seconds / prediction.makespan_s if seconds else 1.0),
            "compute": use.compute.tolist(),
            "memory": use.memory.tolist(),
            "held": use.held.tolist(),
        },
    }
