"""Waiting for a batch on a server, with its progress on the terminal."""

import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from muxcluster.cli.batch_server.client import ApiObject, BatchServer
from muxcluster.cli.batch_server.following import followed
from muxcluster.cli.batch_server.showing import duration_text, left_s, num_ended, problems_of
from muxcluster.core.errors import Unavailable

_COLUMNS = (
    TextColumn("{task.description}"),
    BarColumn(),
    MofNCompleteColumn(),
    TextColumn("{task.fields[left]}"),
)


def wait_for(server: BatchServer, batch_id: str, console: Console) -> ApiObject:
    """Wait for the end of the batch and return it.

    Raises ConfigError if there is no such batch, Unavailable if the server stays away.
    """
    is_hidden = not console.is_terminal  # of which an empty line would be left
    with Progress(*_COLUMNS, console=console, transient=True, disable=is_hidden) as bar:
        shown = bar.add_task("waiting", total=None, left="")
        for batch in followed(server, batch_id):
            if isinstance(batch, Unavailable):
                bar.update(shown, description="no server", left=str(batch))
                continue
            ended, total = num_ended(batch)
            bar.update(
                shown,
                description=batch["status"],
                total=total or None,
                completed=ended,
                left=_left_text(batch),
            )
    assert not isinstance(batch, Unavailable)
    return batch


def _left_text(batch: ApiObject) -> str:
    """Say what blocks the batch, or when it should end."""
    if problems := problems_of(batch):
        return ", ".join(problems)
    remaining_s = left_s(batch, time.time())
    return "" if remaining_s is None else f"{duration_text(remaining_s)} left"
