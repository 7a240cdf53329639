"""A plan for a configuration, and the planner's errors in the words of the file."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from muxcluster.config.load import Config
from muxcluster.config.planner_input import nodes_of, problem
from muxcluster.core.errors import ConfigError, InfeasiblePlan
from muxcluster.placement.compat import CompatError
from muxcluster.placement.memory import (
    DoesNotFit,
    DoNotFitTogether,
)
from muxcluster.placement.plan import Plan
from muxcluster.placement.planner import Method, place
from muxcluster.placement.problem import Node


def plan_for(
    config: Config,
    nodes: Sequence[Node] | None = None,
    *,
    method: Method = "greedy",
    time_limit_s: float = 0.0,
    current: Plan | None = None,
    curves: Path | None = None,
) -> Plan:
    """Plan for the configuration's models.

    nodes: hardware found otherwise (from Ray, for example); None takes the file's. The other
    arguments are those of `muxcluster.placement.planner.place`; no time is spent on proofs by
    default. Raises InfeasiblePlan, one line naming file, key, model and the missing memory;
    ConfigError if `method` cannot plan for these models or a profile cannot be read.
    """
    with refusals(config):
        asked = problem(config, tuple(nodes or nodes_of(config)))
        return place(asked, method, time_limit_s=time_limit_s, current=current, curves=curves)


@contextmanager
def refusals(config: Config) -> Iterator[None]:
    """Convert the planner's errors inside the block to errors that name the file and the key."""
    try:
        yield
    except DoNotFitTogether as error:
        raise InfeasiblePlan(f"{config.file}: models: {error}") from error
    except DoesNotFit as error:
        index = [model.name for model in config.models].index(error.model)
        raise InfeasiblePlan(f"{config.file}: models[{index}]: {error}") from error
    except CompatError as error:
        raise ConfigError(config.file, "", f"method compat: {error}") from error
