"""`muxcluster batch run`: a file of requests answered on this machine, without a server."""

import json
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from muxcluster.batch.job import Status
from muxcluster.cli.batching.files import JobFiles, deliver, opened
from muxcluster.cli.batching.planning import AUTO
from muxcluster.cli.batching.running import LocalRun, Ran, speed_text
from muxcluster.config import load_config
from muxcluster.offline.orders import ORDERS


def run(
    file: Annotated[
        Path,
        typer.Argument(
            help="The job, JSON lines in OpenAI's batch format; its lines may mix models"
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", help="Answers go there, a line each. Example: -o answers.jsonl"
        ),
    ],
    config: Annotated[
        Path, typer.Option(help="muxcluster.yaml. Example: --config muxcluster.yaml")
    ] = Path("muxcluster.yaml"),
    order: Annotated[
        str,
        typer.Option(
            help=f"{AUTO} (the fastest by prediction), {', '.join(ORDERS)}. Example: --order dfs"
        ),
    ] = AUTO,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the summary as JSON. Example: --json | jq .failed")
    ] = False,
) -> None:
    """Answer the requests in FILE with the models of the configuration, loaded into this process.

    Lines that are wrong, or get no answer, go to OUTPUT's neighbour `.errors.jsonl` with their
    number and the reason. Interrupted, even by kill -9, the same command goes on where it stopped:
    until the end everything is kept in the folder OUTPUT.batch. Exit code 1 where no line could
    run, 2 where a file or an option is wrong.

    Example: muxcluster batch run job.jsonl -o answers.jsonl --config muxcluster.yaml
    """
    if order not in (AUTO, *ORDERS):
        raise typer.BadParameter(f"--order {order}: expected one of {', '.join((AUTO, *ORDERS))}")
    files = JobFiles(output, input=file)
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    local = LocalRun(load_config(config), order, console)
    with opened(files, int(time.time())) as (store, batch):
        try:
            ran = local.run(store, batch)
        except KeyboardInterrupt:
            left = store.get(batch.batch_id)
            console.print(
                f"{left.num_ended} of {left.num_total} lines have ended; "
                f"the same command goes on from there ({files.state})"
            )
            raise
        deliver(files, store, ran.batch)
    _report(ran, files, as_json=as_json)
    if ran.batch.status is Status.FAILED:
        raise typer.Exit(1)


def _report(ran: Ran, files: JobFiles, *, as_json: bool) -> None:
    content = _content(ran)
    if as_json:
        typer.echo(json.dumps(content, indent=2))
        return
    console = Console(highlight=False, soft_wrap=True)
    batch = ran.batch
    if batch.problem:
        console.print(f"{batch.status}: {batch.problem}")
    else:
        console.print(f"{batch.num_completed} answers in {files.output}")
    if batch.num_failed:
        console.print(f"{batch.num_failed} lines without one in {files.errors}")
    if ran.progress is not None:
        orders = ", ".join(f"{model} {order}" for model, order in ran.orders.items())
        console.print(f"{speed_text(ran.progress)}; {ran.seconds:.1f} s in all; order: {orders}")
    for models in ran.in_turn:
        console.print(f"one after the other, which is predicted to be faster: {', '.join(models)}")


def _content(ran: Ran) -> dict[str, Any]:
    batch, progress = ran.batch, ran.progress
    content: dict[str, Any] = {
        "status": batch.status,
        "total": batch.num_total,
        "completed": batch.num_completed,
        "failed": batch.num_failed,
        "problem": batch.problem or None,
        "seconds": ran.seconds,
        "orders": dict(ran.orders),
        "in_turn": [list(models) for models in ran.in_turn],
    }
    if progress is not None:
        content["prompt_tokens"] = progress.use.prompt
        content["cached_tokens"] = progress.use.cached
        content["output_tokens"] = progress.use.output
        content["running_s"] = progress.elapsed_s
    return content
