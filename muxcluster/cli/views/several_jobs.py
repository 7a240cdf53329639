"""A job whose lines name several models: a plan for each, and whether to run them at once."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.text import Text

from muxcluster.batch.plan.prediction import Comparison, PredictionOptions, compare
from muxcluster.batch.plan.setting import settings_of
from muxcluster.cli.views.batch_job import plan_content, plan_lines, plan_uses
from muxcluster.cli.views.words import seconds_text
from muxcluster.config.load import Config
from muxcluster.offline.predictor import UseOverTime
from muxcluster.placement.names import nearest
from muxcluster.sim.batch.together import OrderedJob, Together, compare_together
from muxcluster.sim.core.unit import SimUnit
from muxcluster.workload.files.batchfile import Skips, Survey, survey

Ways = tuple[Path | None, str | None]


@dataclass(frozen=True, slots=True)
class Shared:
    """Units that several of the job's models share."""

    models: tuple[str, ...]
    found: Mapping[str, Together]  # by unit: at once, and one after another

    @property
    def joint_s(self) -> float:
        """Seconds if all run at once, until the last unit has ended."""
        return max(each.joint_s for each in self.found.values())

    @property
    def one_after_other_s(self) -> float:
        """Seconds if the models run one after another."""
        return max(each.one_after_other_s for each in self.found.values())

    @property
    def is_joint(self) -> bool:
        """Whether they should run at once."""
        return self.joint_s < self.one_after_other_s


@dataclass(frozen=True, slots=True, eq=False)
class JobsByModel:
    """Jobs of several models: planned alone and together."""

    comparisons: Mapping[str, Comparison]  # by model
    shared: tuple[Shared, ...]  # of units that serve at least two of the models


def surveyed(path: Path, config: Config, model: str | None) -> Survey:
    """Survey the lines of a file; `model`: the only one allowed, None for any of `config`.

    Raises ConfigError if no line is a request, or `model` is not there.
    """
    known = [each.name for each in config.models] if model is None else [model]

    def why_not(name: str) -> str | None:
        if name in known:
            return None
        if model is not None:
            return f"a job is for one model: expected {model!r}, found {name!r:.80}"
        return f"no model {name!r:.80} in {config.file}{nearest(name[:80], known)}"

    return survey(path, why_not)


def compare_several(
    config: Config,
    models: Sequence[str],
    path: Path,
    options: PredictionOptions,
    ways: Ways,
) -> JobsByModel:
    """Compare the orders of each model's lines, then of models that share units.

    ways: `settings_of`'s plan and lane. Raises ConfigError, InfeasiblePlan.
    """
    comparisons = {
        model: compare(settings_of(config, model, *ways), path, options, Skips(True, True))
        for model in models
    }
    return JobsByModel(comparisons, tuple(_shared(comparisons, options)))


def _shared(comparisons: Mapping[str, Comparison], options: PredictionOptions) -> Iterator[Shared]:
    of_units: dict[frozenset[str], list[str]] = defaultdict(list)
    for model, comparison in comparisons.items():
        units = frozenset(each.part.setting.unit.spec.unit_id for each in comparison.units)
        of_units[units].append(model)
    for models in of_units.values():
        if len(models) > 1:
            yield Shared(tuple(models), _together(comparisons, models, options))


def _together(
    comparisons: Mapping[str, Comparison], models: Sequence[str], options: PredictionOptions
) -> dict[str, Together]:
    units: dict[str, SimUnit] = {}
    jobs: dict[str, dict[str, OrderedJob]] = defaultdict(dict)
    for model in models:
        for each in comparisons[model].units:
            unit = each.part.setting.unit
            units[unit.spec.unit_id] = unit
            order = comparisons[model].best
            jobs[unit.spec.unit_id][model] = OrderedJob(each.part.job, order, options.are_known)
    return {
        unit_id: compare_together(unit, jobs[unit_id], options.num_sampled)
        for unit_id, unit in units.items()
    }


def several_lines(found: JobsByModel) -> Iterator[Text]:
    """Return the lines of each model, then those about shared units."""
    for comparison in found.comparisons.values():
        yield from plan_lines(comparison)
        yield Text()
    for each in found.shared:
        advice = "run them at once" if each.is_joint else "run them one after the other"
        yield Text(
            f"{', '.join(each.models)} share {', '.join(sorted(each.found))}: all at once "
            f"{seconds_text(each.joint_s)}, one after the other "
            f"{seconds_text(each.one_after_other_s)}: {advice}",
            style="bold",
        )


def several_uses(found: JobsByModel) -> dict[str, UseOverTime]:
    """Return the uses of each model's plan by title, alone on its units."""
    return {
        title: use
        for comparison in found.comparisons.values()
        for title, use in plan_uses(comparison).items()
    }


def several_content(found: JobsByModel) -> dict[str, Any]:
    """Return the content for JSON. models: as for a job of one. shared: seconds both ways."""
    return {
        "models": {model: plan_content(each) for model, each in found.comparisons.items()},
        "shared": [
            {
                "models": list(each.models),
                "units": sorted(each.found),
                "joint_s": each.joint_s,
                "one_after_other_s": each.one_after_other_s,
                "is_joint": each.is_joint,
            }
            for each in found.shared
        ],
    }
