"""Planning from Python: no GPU, no weights, no torch, no Ray."""

from dataclasses import replace
from typing import Literal, get_args

from muxcluster.config.load import Config, load_config
from muxcluster.config.planfile import check_continued
from muxcluster.config.planning import plan_for
from muxcluster.placement.names import nearest
from muxcluster.placement.plan import Plan
from muxcluster.placement.problem import Objective

__all__ = ["Config", "Plan", "load_config", "plan"]

PlanMethod = Literal["greedy", "exact", "spatial", "memory-greedy"]


def plan(
    config: Config,
    *,
    method: PlanMethod = "greedy",
    objective: Objective | None = None,
    time_limit_s: float = 10.0,
    current: Plan | None = None,
) -> Plan:
    """Plan which models share which GPUs; nothing is started, no weights are read.

    method: "greedy" is the search; "exact" proves it or betters it; "spatial" (a mesh per model)
    and "memory-greedy" are for comparison. objective: instead of the file's `policy.objective`.
    time_limit_s: for proving how good the plan is; 0 proves nothing, and `bound` is then None.
    current: the plan in force; its models move only where that is worth it.

    Raises InfeasiblePlan, one line naming the model and the missing memory; ConfigError if a
    profile cannot be read or `current` is of another configuration; ValueError for an unknown
    method or objective.

    >>> from muxcluster import load_config, plan
    >>> found = plan(load_config("examples/small.yaml"), time_limit_s=0)
    >>> for unit in found.units:
    ...     print(unit.id, unit.gpus, [model.name for model in unit.models])
    a-0 (0,) ['chat-8b']
    a-1 (1,) ['code-7b', 'rare-14b', 'tutor-3b']
    """
    _check_word("method", method, get_args(PlanMethod))
    if current is not None:
        if method not in ("greedy", "exact"):
            raise ValueError("current needs method 'greedy' or 'exact'")
        check_continued("current plan", current, config)
    if objective is not None:
        config = with_objective(config, objective)
    return plan_for(config, method=method, time_limit_s=time_limit_s, current=current)


def with_objective(config: Config, objective: Objective) -> Config:
    """Return the configuration with another `policy.objective`. Raises ValueError."""
    _check_word("objective", objective, get_args(Objective))
    policy = config.policy.model_copy(update={"objective": objective})
    return replace(config, policy=policy)


def _check_word(name: str, word: str, known: tuple[str, ...]) -> None:
    if word not in known:
        choices = ", ".join(known)
        raise ValueError(f"no {name} {word!r}{nearest(word, known)}: one of {choices}")
