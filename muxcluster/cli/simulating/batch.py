"""`--batch`: a batch job from a file beside the configured requests, which are interactive."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from muxcluster.batch.plan.prediction import AUTO, LENGTHS, PredictionOptions, compare
from muxcluster.batch.plan.setting import settings_of
from muxcluster.cli.simulating.demand import digest_of
from muxcluster.config.load import Config
from muxcluster.offline.order.orders import ORDERS
from muxcluster.sim.batch.with_interactive import JobBeside

_SAMPLE = 2000  # requests of the sample on which `--order auto` compares orders

BatchOption = Annotated[
    Path | None,
    typer.Option(
        help="A batch job, as for `muxcluster batch plan`: there from the start, fed to its "
        "units as memory comes free. Prints both classes apart. "
        "Example: --batch job.jsonl --order batchllm"
    ),
]
OrderOption = Annotated[
    str | None,
    typer.Option(
        help=f"Of the batch job: {AUTO}, {', '.join(ORDERS)}; by default {AUTO}.",
        show_default=False,
    ),
]
LengthsOption = Annotated[
    str | None,
    typer.Option(
        help=f"What the job's plan is told of output lengths: {' or '.join(LENGTHS)}, as for "
        f"`muxcluster batch plan`; by default {LENGTHS[0]}. Example: --lengths known",
        show_default=False,
    ),
]
ModelOption = Annotated[
    str | None,
    typer.Option(
        "--batch-model", help="That the batch job is for; needed where CONFIG has several."
    ),
]


@dataclass(frozen=True, slots=True)
class JobOptions:
    """What the command line asks for: a file of `model` (None: the only one), its order, and
    whether its plan is told the output lengths."""

    path: Path
    order: str
    model: str | None
    are_known: bool = False


def job_options(
    path: Path | None, order: str | None, model: str | None, lengths: str | None = None
) -> JobOptions | None:
    """Return the options; None without --batch. Raises typer.BadParameter for an unknown name, or
    for options that need --batch."""
    if path is None:
        if any(each is not None for each in (order, model, lengths)):
            raise typer.BadParameter("--order, --lengths and --batch-model need --batch")
        return None
    if order not in (None, AUTO, *ORDERS):
        raise typer.BadParameter(f"--order {order}: expected one of {AUTO}, {', '.join(ORDERS)}")
    if lengths not in (None, *LENGTHS):
        raise typer.BadParameter(f"--lengths {lengths}: expected one of {', '.join(LENGTHS)}")
    return JobOptions(path, order or AUTO, model, lengths == LENGTHS[1])


def job_of(options: JobOptions, config: Config, plan: Path | None, seed: int) -> JobBeside:
    """Return the job in its final order; auto chooses the order for the job alone.

    Raises ConfigError, InfeasiblePlan.
    """
    settings = settings_of(config, options.model, plan, option="--batch-model")
    order = options.order
    if order == AUTO:
        order = compare(
            settings, options.path, PredictionOptions(AUTO, _SAMPLE, seed, options.are_known)
        ).best
    file = settings[0].file(options.path, digest_of(options.path))
    file.read(seed)  # so that an invalid line is reported before anything is simulated
    return JobBeside(file, order, options.are_known)
