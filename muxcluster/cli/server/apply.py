"""Implementation of `muxcluster up`: plan for a Ray cluster, show the change, apply it, wait."""

import sys
from dataclasses import dataclass
from pathlib import Path

import typer
from rich.console import Console

from muxcluster.cli.server.changes import Change, change_between, change_lines
from muxcluster.cli.server.launch import check_models
from muxcluster.cli.server.progress import ProgressPrinter
from muxcluster.cli.server.rollout import (
    Goal,
    Running,
    check_installed,
    perform,
    step_lines,
    steps_to,
)
from muxcluster.cli.terminal.telling import tell
from muxcluster.cluster.attach import find_controller, joined
from muxcluster.cluster.ingress.serve_app import Ingresses, ingresses_of
from muxcluster.cluster.ray.nodes import planning_nodes, ray_nodes
from muxcluster.cluster.state.desired import Desired
from muxcluster.cluster.state.fitting import desired_of, renewed
from muxcluster.config.hub import Fetching, Wanted
from muxcluster.config.load import Config, load_config
from muxcluster.config.planning import plan_for


@dataclass(frozen=True, slots=True)
class UpOptions:
    """Options of the command line."""

    address: str
    timeout_s: float  # until all must run
    dry_run: bool
    yes: bool
    as_json: bool


def apply(config: Path, options: UpOptions) -> None:
    """Make the cluster at `options.address` run `config`, and wait until it does.

    Raises ConfigError, LoadError, InfeasiblePlan, Unavailable; EngineFailure, also where a step
    failed and was rolled back; BadParameter without a terminal to confirm on; Abort if the answer
    is no.
    """
    console = Console(highlight=False, soft_wrap=True, markup=False, stderr=options.as_json)
    wanted = load_config(config, Fetching(Wanted.ALL, tell))
    with joined(options.address):
        controller = find_controller()
        running = None if controller is None else Running.of(controller)
        before = None if running is None else running.goal
        desired_before = None if before is None else before.desired
        edge = ingresses_of(wanted)
        goal = Goal(_planned(wanted, desired_before), edge)
        steps = steps_to(goal, running)
        change = change_between(
            desired_before,
            goal.desired,
            is_edge_new=before is None or before.edge != edge,
            steps=step_lines(steps, running),
        )
        _show(console, change, goal.desired, options.as_json)
        if running is not None:
            check_installed(running)
        if options.dry_run:
            return
        if steps and not options.yes:
            _confirm()
        perform(steps, goal, running, options.timeout_s, ProgressPrinter(console))
        _announce(console, goal.desired, edge)


def _planned(config: Config, before: Desired | None) -> Desired:
    """Return the desired state. The same file gives what runs already, whatever rates were measured
    since.

    Raises ConfigError, LoadError, InfeasiblePlan.
    """
    if before is not None and _is_same(config, before.config):
        return renewed(before)
    nodes = planning_nodes(config, [node for node in ray_nodes() if node.is_alive])
    current = before.plan if before is not None and before.plan.units else None
    desired = desired_of(config, plan_for(config, nodes, current=current), nodes)
    check_models(desired)
    return desired


def _is_same(config: Config, other: Config) -> bool:
    return (config.models, config.cluster, config.policy) == (
        other.models,
        other.cluster,
        other.policy,
    )


def _show(console: Console, change: Change, desired: Desired, as_json: bool) -> None:
    for line in change_lines(change):
        console.print(line)
    if as_json:
        typer.echo(change.to_json(desired))


def _confirm() -> None:
    """Ask for confirmation. Raises BadParameter without a terminal, Abort if the answer is no."""
    if not sys.stdin.isatty():
        raise typer.BadParameter("nobody can be asked here: say --yes to apply this")
    typer.confirm("Apply?", abort=True)


def _announce(console: Console, desired: Desired, edge: Ingresses) -> None:
    nodes = "each node" if edge.is_everywhere else "the head"
    where = "" if edge.listen is None else f", at {edge.listen.host}:{edge.listen.port} of {nodes}"
    console.print(f"{len(desired.models)} model(s) in {len(desired.targets)} unit(s){where}")
