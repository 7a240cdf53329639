"""Batches of a server as lines and tables."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from muxcluster.cli.batch_server.client import ApiObject

OVER = frozenset({"completed", "failed", "expired", "cancelled"})
ESTIMATE = "estimated_finish_at"  # Key of a batch's metadata, Unix seconds


def num_ended(batch: ApiObject) -> tuple[int, int]:
    """Return the numbers of ended lines and of all lines."""
    counts: Mapping[str, int] = batch["request_counts"]
    return counts["completed"] + counts["failed"], counts["total"]


def left_s(batch: ApiObject, now_s: float) -> float | None:
    """Seconds until the batch should end; None if the server does not know."""
    estimate = (batch.get("metadata") or {}).get(ESTIMATE)
    return None if estimate is None else max(0.0, float(estimate) - now_s)


def duration_text(seconds: float) -> str:
    """ "40 s", "12 min", "3.5 h"."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def batch_line(batch: ApiObject) -> str:
    """Describe one batch: its state and progress."""
    ended, total = num_ended(batch)
    parts = [f"{batch['id']}: {batch['status']}", f"{ended} of {total} lines"]
    if failed := batch["request_counts"]["failed"]:
        parts.append(f"{failed} of them without an answer")
    remaining_s = left_s(batch, time.time())
    if remaining_s is not None:
        parts.append(f"{duration_text(remaining_s)} left")
    return ", ".join([*parts, *problems_of(batch)])


def problems_of(batch: ApiObject) -> list[str]:
    """Return why the batch failed, or cannot continue at the moment."""
    return [error["message"] for error in (batch.get("errors") or {}).get("data", ())]


def show_batches(console: Console, batches: Sequence[ApiObject]) -> None:
    """Print a row per batch, the newest first, then what blocks the open ones."""
    if not batches:
        console.print("no batches")
        return
    # Ids must be copyable, so the table is at most 80 columns wide.
    table = Table(box=None, pad_edge=False)
    for title in ("batch", "status"):
        table.add_column(title, no_wrap=True)
    for title in ("ended", "failed", "left"):
        table.add_column(title, justify="right", no_wrap=True)
    now_s = time.time()
    for batch in batches:
        table.add_row(*_row(batch, now_s))
    console.print(table)
    for batch in batches:
        if batch["status"] not in OVER and (problems := problems_of(batch)):
            console.print(f"{batch['id']}: {', '.join(problems)}", markup=False, highlight=False)


def _row(batch: Mapping[str, Any], now_s: float) -> list[str]:
    ended, total = num_ended(batch)
    remaining_s = left_s(batch, now_s)
    left = "" if remaining_s is None else duration_text(remaining_s)
    failed = batch["request_counts"]["failed"]
    return [batch["id"], batch["status"], f"{ended}/{total}", str(failed), left]
