"""The steps from what a cluster runs to what it is to run, and back where one of them fails."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from muxcluster import __version__
from muxcluster.cluster.attach import (
    MOST_FAILURES,
    Progress,
    ask,
    replace_controller,
    start_controller,
    wait_converged,
)
from muxcluster.cluster.control.controller import Controller, Wiring
from muxcluster.cluster.control.store import read_state
from muxcluster.cluster.ray.versions import installed_versions
from muxcluster.cluster.state.desired import Desired
from muxcluster.cluster.state.edge import Edge
from muxcluster.core.errors import EngineFailure


@dataclass(frozen=True, slots=True)
class Goal:
    """What a cluster is to run."""

    desired: Desired
    edge: Edge


@dataclass(frozen=True, slots=True)
class Running:
    """What a cluster runs. controller: its handle; version: of muxcluster in its process."""

    controller: Any
    version: str
    goal: Goal | None  # None before the first

    @classmethod
    def of(cls, controller: Any) -> "Running":
        """Ask the controller.

        Raises Unavailable; EngineFailure if its version and this one do not work together.
        """
        read_state()
        version = ask(controller, Controller.version)
        desired, edge = ask(controller, Controller.desired), ask(controller, Controller.edge)
        goal = None if desired is None or edge is None else Goal(desired, edge)
        return cls(controller, version, goal)


class Step(Enum):
    """A step of a change; the cluster serves during each of them and after it."""

    CONTROLLER = auto()
    INGRESSES = auto()
    UNITS = auto()


def steps_to(goal: Goal, running: Running | None) -> tuple[Step, ...]:
    """Return the steps, in their order; running: None if nothing runs.

    The controller is first, because a newer one knows how to run what is older, then ingresses,
    which know what older units say.
    """
    if running is None:
        return (Step.UNITS,)
    before = running.goal
    wanted = {
        Step.CONTROLLER: running.version != __version__,
        Step.INGRESSES: before is not None and before.edge != goal.edge,
        Step.UNITS: before is None or before.desired != goal.desired,
    }
    return tuple(step for step, is_wanted in wanted.items() if is_wanted)


def step_lines(steps: Sequence[Step], running: Running | None) -> list[str]:
    """Return a line for each step; none for the first start."""
    if running is None or running.goal is None:
        return []
    said = {
        Step.CONTROLLER: f"the controller: {__version__} in the place of {running.version}",
        Step.INGRESSES: "the ingresses: others stand in while they finish their answers",
        Step.UNITS: "the units that change: one at a time, their requests wait or move on",
    }
    return [f"{number}. {said[step]}" for number, step in enumerate(steps, start=1)]


def check_installed(running: Running) -> None:
    """Raise EngineFailure if the cluster has another version and a node has not this one yet."""
    if running.version == __version__:
        return
    others = {name: it for name, it in installed_versions().items() if it != __version__}
    if others:
        found = ", ".join(f"{name} has {version}" for name, version in sorted(others.items()))
        raise EngineFailure(f"install muxcluster {__version__} on every node first: {found}")


def perform(
    steps: Sequence[Step], goal: Goal, running: Running | None, timeout_s: float, tell: Progress
) -> None:
    """Take the steps, and wait for at most `timeout_s` seconds after each.

    Raises EngineFailure if one does not get there. If something failed repeatedly, what ran before
    has been applied again by then; a step that only takes too long goes on.
    """
    before = None if running is None else running.goal
    controller = start_controller(Wiring()) if running is None else running.controller
    if Step.CONTROLLER in steps:
        controller = replace_controller(controller, Wiring())
    try:
        if before is not None and Step.INGRESSES in steps:
            _apply(controller, Goal(before.desired, goal.edge), timeout_s, tell)
        if Step.UNITS in steps:
            _apply(controller, goal, timeout_s, tell)
        wait_converged(controller, timeout_s, tell)
    except EngineFailure as error:
        progress = ask(controller, Controller.progress)
        if before is None or not steps or progress["num_failures"] < MOST_FAILURES:
            raise
        try:
            _apply(controller, before, timeout_s, tell)
        except EngineFailure as second:
            raise EngineFailure(f"{error}; what ran before does not run again: {second}") from error
        raise EngineFailure(f"{error}; rolled back to what ran before") from error


def _apply(controller: Any, goal: Goal, timeout_s: float, tell: Progress) -> None:
    ask(controller, Controller.apply, goal.desired, goal.edge)
    wait_converged(controller, timeout_s, tell)
