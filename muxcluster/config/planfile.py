"""Reading of plan.json, with checks of its form and of its fit to the configuration."""

from pathlib import Path
from typing import Any

from pydantic import ValidationError

from muxcluster.config.load import Config
from muxcluster.config.problems import first_problem
from muxcluster.core.errors import ConfigError
from muxcluster.core.inputs.json_file import read_json
from muxcluster.placement.plan import Plan, PlannedUnit


def read_plan(path: Path, config: Config) -> Plan:
    """Read a plan to continue from. It may contain models and nodes that the configuration no
    longer has, but not only those.

    Raises ConfigError: one line naming file, key and error.
    """
    try:
        plan = Plan.model_validate(_json_object(path))
    except ValidationError as error:
        raise first_problem(path, Plan, {}, error) from error
    check_continued(path, plan, config)
    return plan


def check_continued(path: Path | str, plan: Plan, config: Config) -> None:
    """Check a plan to continue from. path: what it is called in errors. Raises ConfigError."""
    taken: dict[tuple[str, int], str] = {}
    for index, unit in enumerate(plan.units):
        _check_mesh(path, f"units[{index}]", unit)
        _check_models(path, f"units[{index}]", unit)
        for gpu in unit.gpus:
            if (unit.node, gpu) in taken:
                message = f"GPU {gpu} of {unit.node} is in {taken[unit.node, gpu]} as well"
                raise ConfigError(path, f"units[{index}].gpus", message)
            taken[unit.node, gpu] = unit.id
    _check_cluster(path, plan, config)


def whole_plan(path: Path, config: Config) -> Plan:
    """Read a plan of exactly the configuration's models, on its nodes. Raises ConfigError."""
    plan = read_plan(path, config)
    _check_whole(path, plan, config)
    return plan


def check_whole(path: Path | str, plan: Plan, config: Config) -> None:
    """Check that a plan is of exactly the configuration's models, on its nodes.

    path: what it is called in errors. Raises ConfigError.
    """
    check_continued(path, plan, config)
    _check_whole(path, plan, config)


def _check_whole(path: Path | str, plan: Plan, config: Config) -> None:
    planned = {model.name for unit in plan.units for model in unit.models}
    models = {model.name for model in config.models}
    for name in sorted(planned ^ models):
        where = "the configuration" if name in planned else "the plan"
        raise ConfigError(path, "units", f"{where} has no model {name!r}")
    nodes = {node.name for node in config.cluster.listed()}
    for unit in plan.units:
        if unit.node not in nodes:
            raise ConfigError(path, "units", f"{config.file} has no node {unit.node!r}")


def _json_object(path: Path) -> dict[str, Any]:
    try:
        content = read_json(path)
    except FileNotFoundError as error:
        raise ConfigError(path, "", "no such file") from error
    except OSError as error:
        raise ConfigError(path, "", f"cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(path, "", f"not JSON: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError(path, "", "not a plan: expected a JSON object")
    return content


def _check_mesh(path: Path | str, key: str, unit: PlannedUnit) -> None:
    """Check that the GPUs are distinct, `tp` of them, and a power of two."""
    if len(set(unit.gpus)) != unit.tp or len(unit.gpus) != unit.tp:
        raise ConfigError(path, f"{key}.gpus", f"{len(set(unit.gpus))} GPUs for tp {unit.tp}")
    if unit.tp & (unit.tp - 1):
        raise ConfigError(path, f"{key}.tp", f"{unit.tp} is no power of two")


def _check_models(path: Path | str, key: str, unit: PlannedUnit) -> None:
    names = [model.name for model in unit.models]
    if not names:
        raise ConfigError(path, f"{key}.models", "the unit has none")
    if len(set(names)) < len(names):
        raise ConfigError(path, f"{key}.models", "a model is there twice")


def _check_cluster(path: Path | str, plan: Plan, config: Config) -> None:
    """Check that at least one model and one node are the configuration's."""
    models = {model.name for model in config.models}
    nodes = {node.name for node in config.cluster.listed()}
    if not plan.units:
        raise ConfigError(path, "units", "the plan has none")
    if not any(model.name in models for unit in plan.units for model in unit.models):
        name = plan.units[0].models[0].name
        message = f"{config.file} has no model {name!r}, nor any other of the plan"
        raise ConfigError(path, "units[0].models[0].name", message)
    if not any(unit.node in nodes for unit in plan.units):
        name = plan.units[0].node
        message = f"{config.file} has no node {name!r}, nor any other of the plan"
        raise ConfigError(path, "units[0].node", message)
