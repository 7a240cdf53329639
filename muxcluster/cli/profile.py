"""`muxcluster profile`: how long jobs really take on this machine, for the planner to go by."""

import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from muxcluster.cli.profiling.pairs import measured_pairs, points_of, show_pairs
from muxcluster.cli.profiling.subjects import (
    Subject,
    can_divide,
    check_itemsizes,
    chosen,
    node_of,
    numbers,
    shares_of,
    subject_of,
)
from muxcluster.cli.terminal.signals import Stopped, stoppable
from muxcluster.cli.terminal.telling import tell
from muxcluster.config.hub import Fetching, Wanted
from muxcluster.config.load import Config, load_config
from muxcluster.core.errors import ConfigError
from muxcluster.engine.profile.grid import Grid, Point, fits
from muxcluster.engine.profile.model import measure
from muxcluster.placement.cost import Cost, Pair, Profile, ProfiledModel, cost_for
from muxcluster.placement.problem import Node
from muxcluster.placement.shapes.shape import ModelShape
from muxcluster.workload.files.put import put

FULL = Grid(shares=(), batches=(1, 2, 4, 8), lengths=(32, 128, 512), repeats=3)
# No shares: use those that the node can be divided into.
QUICK = Grid(shares=(), batches=(1, 4), lengths=(32, 128), repeats=1)
FULL_GPU = Grid(shares=(), batches=(1, 8, 32, 128), lengths=(128, 512, 2048), repeats=3)
QUICK_GPU = Grid(shares=(), batches=(1, 32), lengths=(128, 1024), repeats=1)
COLUMNS = ("share", "batch", "tokens", "prefill ms", "decode ms")
# Load average above which the machine does not count as quiet.
BUSY_LOAD = 0.5
_CPUINFO = Path("/proc/cpuinfo")


def profile(  # noqa: PLR0913 - each parameter is an option of the command line
    config: Annotated[Path, typer.Argument(help="muxcluster.yaml")],
    out: Annotated[Path | None, typer.Option(help="Write the profile to this file.")] = None,
    models: Annotated[str | None, typer.Option(help="Only these: a,b.")] = None,
    batches: Annotated[
        str | None, typer.Option(help="Sequences a job, by default 1,2,4,8 (GPU: 1,8,32,128).")
    ] = None,
    lengths: Annotated[
        str | None,
        typer.Option(help="Tokens of each prompt or context, by default 32,128,512, of a GPU x4."),
    ] = None,
    shares: Annotated[
        str | None,
        typer.Option(help="Parts of the cores or SMs, by default 0.5,1.0 (GPU: 0.3,0.5,0.7,1.0)."),
    ] = None,
    repeats: Annotated[
        int | None, typer.Option(min=1, help="Runs of each cell, by default 3.")
    ] = None,
    alone: Annotated[bool, typer.Option("--alone", help="Nothing side by side.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="A small grid, one run a cell.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the profile alone.")] = False,
) -> None:
    """Measure on this machine how long jobs of CONFIG's models take.

    Each model by itself (prefills, decode steps, both in one job; on a CPU also what the unit does
    between jobs), then a prefill beside decodes for every two models and two shares that make up
    the whole. What does not fit a model's context, its max_seqs or the KV pool is left out. Other
    work on the machine spoils the figures. Exit code 2 where the input is wrong.

    Example: muxcluster profile muxcluster.yaml --out profile.json --batches 1,8 --lengths 64,512
    """
    if out is None and not as_json:
        raise typer.BadParameter("give --out FILE, --json or both")
    loaded = load_config(config, Fetching(Wanted.ALL, tell))
    node = node_of(loaded)
    defaults = _defaults(node, quick=quick)
    grid = Grid(
        numbers("--shares", shares, float),
        numbers("--batches", batches, int) or defaults.batches,
        numbers("--lengths", lengths, int) or defaults.lengths,
        repeats or defaults.repeats,
    )
    grid, subjects = _subjects(loaded, node, grid, models)
    cost = cost_for(node.gpu, itemsize := check_itemsizes(loaded, subjects))
    if out is not None:
        _check_writable(out)
    begun_s = time.monotonic()
    found, pairs = _measured(subjects, grid, cost, alone=alone)
    threads = f", {subjects[0].spec.num_threads} threads" if node.gpu.is_cpu else ""
    measured = Profile(
        gpu=node.gpu.name,
        itemsize=itemsize,
        machine=f"{_processor()}{threads}",
        models=found,
        pairs=pairs,
    )
    if out is not None:
        _write(measured, out)
        _say(f"wrote {out}")
    if as_json:
        typer.echo(measured.to_json(indent=2))
    else:
        _show(measured, Console(highlight=False))
    _summarise(measured, subjects, grid, time.monotonic() - begun_s)


def _defaults(node: Node, *, quick: bool) -> Grid:
    if node.gpu.is_cpu:
        return QUICK if quick else FULL
    return QUICK_GPU if quick else FULL_GPU


def _subjects(
    config: Config, node: Node, grid: Grid, models: str | None
) -> tuple[Grid, list[Subject]]:
    """Return the grid with its shares, and the models to measure on it.

    If jobs run on the whole GPU whatever their share, that is the one share.
    """
    asked = chosen(config, models)
    shared = replace(grid, shares=shares_of(grid.shares, node))
    subjects = [subject_of(config, model, node, shared) for model in asked]
    if all(can_divide(subject.spec) for subject in subjects) or shared.shares == (1.0,):
        return shared, subjects
    if grid.shares:
        message = "--shares: policy.partition none runs jobs on the whole GPU, so 1.0 only"
        raise typer.BadParameter(message)
    whole = replace(grid, shares=(1.0,))
    return whole, [subject_of(config, model, node, whole) for model in asked]


def _measured(
    subjects: Sequence[Subject], grid: Grid, cost: Cost, *, alone: bool
) -> tuple[tuple[ProfiledModel, ...], tuple[Pair, ...]]:
    """Measure. Raises typer.Exit (130) after a signal, when no process is left."""
    points = () if alone else points_of(subjects, grid)
    shapes = {subject.model.name: subject.model.facts.shape for subject in subjects}

    def predict(name: str, point: Point) -> float:
        return _predicted_s(cost, shapes[name], point)

    lone = [
        (subject.model.name, point)
        for subject in subjects
        for point in grid.points()
        if fits(subject.spec, point)
    ]
    paired = [(point.prefill_model, point.prefill) for point in points]
    paired += [(point.decode_model, point.decode) for point in points]
    num_runs = grid.repeats + 1
    total_s = num_runs * sum(predict(*each) for each in (*lone, *paired))
    names = ", ".join(subject.model.name for subject in subjects)
    _say(f"{names}: about {total_s:.0f} s by the cost model")
    _warn_of_load()
    measured, loaded = [], []
    try:
        with stoppable(), _progress(total_s, predict) as advance:
            for subject in subjects:
                name = subject.model.name
                done = measure(subject.spec, grid, partial(advance, name))
                found = ProfiledModel(name, shapes[name], done.cells, done.mixed, done.turns)
                measured.append(found)
                loaded.append(replace(subject, spec=done.spec))
            # a loaded unit may have a smaller pool than planned: models with their own cache
            points = () if alone else points_of(loaded, grid)

            def advance_all(name: str, point: Point) -> None:
                for _ in range(num_runs):
                    advance(name, point)

            pairs = measured_pairs(loaded, points, grid.repeats, advance_all)
    except Stopped:
        _say("interrupted, nothing is written")
        raise typer.Exit(130) from None
    return tuple(measured), pairs


def _warn_of_load() -> None:
    load = os.getloadavg()[0]
    if load >= BUSY_LOAD:
        _say(f"other work runs here (load average {load:.1f}): measured times will be too long")


def _predicted_s(cost: Cost, shape: ModelShape, point: Point) -> float:
    """Seconds that one run of `point` may take."""
    where = (shape, 1, point.share, point.batch, point.tokens)
    return cost.prefill_s(*where) + cost.decode_s(*where)


@contextmanager
def _progress(
    total_s: float, predict: Callable[[str, Point], float]
) -> Iterator[Callable[[str, Point], None]]:
    """Show a bar on standard error if that is a terminal. Yields a function that advances it: it
    takes a model's name and the measured point, whose seconds are predicted."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("loading", total=total_s)

        def advance(name: str, point: Point) -> None:
            bar.update(task, description=name, advance=predict(name, point))

        yield advance


def _show(measured: Profile, console: Console) -> None:
    """Medians, a line for each share, batch and length."""
    for model in measured.models:
        table = Table(*COLUMNS, title=model.name, title_justify="left", box=None, pad_edge=False)
        for prefill, decode in zip(model.cells[::2], model.cells[1::2], strict=True):
            medians = (f"{1e3 * statistics.median(cell.seconds):.2f}" for cell in (prefill, decode))
            where = (f"{prefill.share:.0%}", str(prefill.batch), str(prefill.tokens))
            table.add_row(*where, *medians)
        console.print(table)
    show_pairs(measured.pairs, console)


def _summarise(measured: Profile, subjects: Sequence[Subject], grid: Grid, seconds: float) -> None:
    asked = 2 * len(grid.points()) * len(subjects)
    done = sum(len(model.cells) for model in measured.models)
    left_out = f", {asked - done} left out (context, max_seqs or KV pool)" if done < asked else ""
    _say(f"{done} cells of {grid.repeats} runs in {seconds:.1f} s{left_out}, on {measured.machine}")


def _say(message: str) -> None:
    """Print on standard error: standard output is for the result."""
    typer.echo(f"profile: {message}", err=True)


def _processor() -> str:
    """The processor's name as Linux gives it, else its kind."""
    lines = _CPUINFO.read_text().splitlines() if _CPUINFO.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine() or "unknown processor")


def _check_writable(out: Path) -> None:
    """Raise ConfigError before measuring rather than after it."""
    try:
        with tempfile.TemporaryFile(dir=out.parent):
            is_folder = out.is_dir()
    except OSError as error:
        raise _unwritable(out, error.strerror) from error
    if is_folder:
        raise _unwritable(out, "is a directory")


def _write(measured: Profile, out: Path) -> None:
    """Write the whole file; after a crash the old one is still there."""
    part = out.with_name(f"{out.name}.{os.getpid()}.part")
    try:
        part.write_text(measured.to_json(indent=2) + "\n", encoding="utf-8")
        put(part, out)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise _unwritable(out, error.strerror) from error


def _unwritable(out: Path, reason: str | None) -> ConfigError:
    return ConfigError(out, "", f"cannot be written: {reason}")
