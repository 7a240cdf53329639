"""The difference between what a cluster runs and what it is to run."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.text import Text

from muxcluster.cli.views.moves import difference_lines
from muxcluster.cli.views.words import mesh_text
from muxcluster.cluster.state.desired import Desired, Target
from muxcluster.cluster.state.fitting import nothing_placed
from muxcluster.config.planner_input import problem
from muxcluster.placement.plan import Plan
from muxcluster.placement.review.difference import Difference, difference


@dataclass(frozen=True, slots=True)
class Change:
    """The difference between the plan in force and the new one."""

    before: Plan  # without units if nothing runs
    after: Plan
    found: Difference
    # Units on the same GPUs with the same models that have to restart
    restarted: tuple[Target, ...]
    is_edge_new: bool  # the ingresses restart
    is_config_new: bool  # expectations, policies or the version changed
    steps: tuple[str, ...] = ()  # in words, in their order; none for the first start

    @property
    def is_empty(self) -> bool:
        """Whether nothing has to be done."""
        return not (self.is_edge_new or self.is_config_new or self.steps)

    def to_json(self, desired: Desired) -> str:
        """{"changes", "plan", "before", "restarted", "unplaced", "steps"}."""
        content = {
            "changes": not self.is_empty,
            "plan": self.after.model_dump(mode="json"),
            "before": self.before.model_dump(mode="json"),
            "restarted": [target.planned.id for target in self.restarted],
            "unplaced": list(desired.unplaced),
            "steps": list(self.steps),
        }
        return json.dumps(content, indent=2)


def change_between(
    before: Desired | None, after: Desired, *, is_edge_new: bool, steps: Sequence[str] = ()
) -> Change:
    """Return what `after` changes; before: None if nothing runs."""
    old = nothing_placed(after.config) if before is None else before.plan
    asked = problem(after.config, after.nodes)
    return Change(
        old,
        after.plan,
        difference(asked, old, after.plan),
        () if before is None else _restarted(before, after),
        is_edge_new,
        before != after,
        tuple(steps),
    )


def change_lines(change: Change) -> Iterator[Text]:
    if change.is_empty:
        yield Text("nothing to change", style="green")
        return
    yield from difference_lines(change.before, change.after, change.found)
    for target in change.restarted:
        yield Text(f"  restart: {mesh_text(target.planned)}, its configuration or version changed")
    if change.is_edge_new:
        yield Text("  the ingresses start anew with the settings of server:")
    for step in change.steps:
        yield Text(f"step {step}")


def _restarted(before: Desired, after: Desired) -> tuple[Target, ...]:
    old = {target.wanted.mesh: target.wanted for target in before.targets}
    return tuple(
        target
        for target in after.targets
        if (was := old.get(target.wanted.mesh)) is not None
        and was.models == target.wanted.models
        and was.key != target.wanted.key
    )
