"""Implementation of `muxcluster batch run`: run the job of a file and report its end."""

import json
import time
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from muxcluster.batch.store.job import Status
from muxcluster.cli.batch_local.files import JobFiles, deliver, opened
from muxcluster.cli.batch_local.running import LocalRun, RunReport, speed_text
from muxcluster.cli.terminal.telling import tell
from muxcluster.config.hub import Fetching, Wanted
from muxcluster.config.load import load_config


def run_file(file: Path, output: Path, config: Path, order: str, *, as_json: bool) -> None:
    """Answer the requests in `file` with the models of `config`, and report.

    Raises ConfigError, LoadError, InfeasiblePlan, StorageFailed, EngineFailure; KeyboardInterrupt
    after SIGINT or SIGTERM; typer.Exit (1) where no line could run.
    """
    files = JobFiles(output, input=file)
    console = Console(stderr=True, highlight=False, soft_wrap=True, markup=False)
    local = LocalRun(load_config(config, Fetching(Wanted.ALL, tell)), order, console)
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


def _report(ran: RunReport, files: JobFiles, *, as_json: bool) -> None:
    content = _content(ran)
    if as_json:
        typer.echo(json.dumps(content, indent=2))
        return
    console = Console(highlight=False, soft_wrap=True, markup=False)
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


def _content(ran: RunReport) -> dict[str, Any]:
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
