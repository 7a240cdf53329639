"""`--batch`: a batch job from a file beside the configured requests, which are interactive."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from muxcluster.cli.batching.planning import AUTO, Wish, compare
from muxcluster.cli.batching.setting import settings_of
from muxcluster.cli.simulating.demand import digest_of
from muxcluster.config import Config
from muxcluster.offline.orders import ORDERS
from muxcluster.sim.batch_load import BatchFile

_SAMPLE = 2000
"""Requests that `--order auto` compares the orders on."""

BatchOption = Annotated[
    Path | None,
    typer.Option(
        help="A batch job, as for `muxcluster batch plan`: its requests are there from the start. "
        "Prints both classes apart. Example: --batch job.jsonl --order batchllm"
    ),
]
OrderOption = Annotated[
    str | None,
    typer.Option(
        help=f"Of the batch job: {AUTO}, {', '.join(ORDERS)}; by default {AUTO}.",
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
class JobWish:
    """What the command line asks for: a file of `model` (None: the only one), and its order."""

    path: Path
    order: str
    model: str | None


def job_wish(path: Path | None, order: str | None, model: str | None) -> JobWish | None:
    """None without --batch. Raises typer.BadParameter for an unknown order, or what needs it."""
    if path is None:
        if order is not None or model is not None:
            raise typer.BadParameter("--order and --batch-model need --batch")
        return None
    if order not in (None, AUTO, *ORDERS):
        raise typer.BadParameter(f"--order {order}: expected one of {AUTO}, {', '.join(ORDERS)}")
    return JobWish(path, order or AUTO, model)


def job_of(wish: JobWish, config: Config, plan: Path | None, seed: int) -> tuple[BatchFile, str]:
    """The file as it is planned, and its order: auto's choice is made on the job alone.

    Raises ConfigError, InfeasiblePlan.
    """
    settings = settings_of(config, wish.model, plan, option="--batch-model")
    order = wish.order
    if order == AUTO:
        order = compare(settings, wish.path, Wish(AUTO, _SAMPLE, seed)).best
    file = settings[0].file(wish.path, digest_of(wish.path))
    file.read(seed)  # so that a bad line is told of before anything is simulated
    return file, order
