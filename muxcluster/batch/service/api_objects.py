"""Files and batches as objects of OpenAI's API."""

from collections.abc import Mapping
from typing import Any

from muxcluster.batch.store.files import StoredFile
from muxcluster.batch.store.job import OPEN, Batch, Status, Use

# metadata key of a running batch: expected end, Unix seconds as text
ESTIMATE = "estimated_finish_at"
_TIMES = {
    "created_at": "created",
    "in_progress_at": Status.IN_PROGRESS,
    "finalizing_at": Status.FINALIZING,
    "completed_at": Status.COMPLETED,
    "failed_at": Status.FAILED,
    "expired_at": Status.EXPIRED,
    "cancelling_at": Status.CANCELLING,
    "cancelled_at": Status.CANCELLED,
}

_NEWS = ("status", "request_counts", "usage", "errors")


def file_object(file: StoredFile) -> dict[str, Any]:
    return {
        "id": file.file_id,
        "object": "file",
        "bytes": file.num_bytes,
        "created_at": file.created_at,
        "filename": file.name,
        "purpose": file.purpose,
        "status": "processed",
        "status_details": None,
        "expires_at": file.expires_at,
    }


def batch_object(
    batch: Batch, finish_s: float | None, waits_for: str | None = None
) -> dict[str, Any]:
    """Return the batch object.

    finish_s: expected end in Unix seconds, if known. waits_for: why the disk takes no results of
    the batch at the moment.
    """
    order, is_over = batch.order, batch.status not in OPEN
    metadata = dict(order.metadata)
    if finish_s is not None and not is_over:
        metadata[ESTIMATE] = str(round(finish_s))
    return {
        "id": batch.batch_id,
        "object": "batch",
        "endpoint": order.endpoint,
        "errors": _errors(batch, waits_for),
        "input_file_id": order.input_file_id,
        "completion_window": order.window,
        "status": batch.status.value,
        "output_file_id": batch.output_file_id if is_over and batch.output_bytes else None,
        "error_file_id": batch.error_file_id if is_over and batch.error_bytes else None,
        "expires_at": order.deadline_s,
        **{name: batch.times.get(entered) for name, entered in _TIMES.items()},
        "request_counts": {
            "total": batch.num_total,
            "completed": batch.num_completed,
            "failed": batch.num_failed,
        },
        "usage": _usage(batch.use),
        "metadata": metadata or None,
    }


def has_news(batch: Mapping[str, Any], seen: Mapping[str, Any]) -> bool:
    """True if the state, the counts or the problems of a batch are others than those seen."""
    return any(batch[name] != seen.get(name) for name in _NEWS)


def _usage(use: Use) -> dict[str, Any]:
    return {
        "input_tokens": use.prompt,
        "input_tokens_details": {"cached_tokens": use.cached},
        "output_tokens": use.output,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": use.prompt + use.output,
    }


def _errors(batch: Batch, waits_for: str | None) -> dict[str, Any] | None:
    """Return why the batch failed, or why it waits at the moment."""
    if batch.problem:
        code, message = "invalid_file", batch.problem
    elif waits_for is not None and batch.status in OPEN:
        code = "storage_full"
        message = f"the server cannot store results: {waits_for}; the batch goes on when it can"
    else:
        return None
    error = {"code": code, "message": message, "param": None, "line": None}
    return {"object": "list", "data": [error]}
