"""`muxcluster batch run`: a file of requests answered on this machine, without a server."""

from pathlib import Path
from typing import Annotated

import typer

from muxcluster.batch.plan.prediction import AUTO
from muxcluster.offline.order.orders import ORDERS


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
    from muxcluster.cli.batch_local.run_file import run_file

    run_file(file, output, config, order, as_json=as_json)
