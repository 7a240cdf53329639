"""What tests do with a client of the batch routes."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import openai
from openai.types import Batch

from tests.http.fakes import wait_until

DONE = ("completed", "failed", "expired", "cancelled")


def submit(
    client: openai.OpenAI,
    lines: Sequence[bytes],
    window: str = "24h",
    endpoint: Any = "/v1/completions",
    **fields: Any,
) -> Batch:
    """A batch of these lines."""
    file = client.files.create(file=("in.jsonl", b"\n".join(lines)), purpose="batch")
    return client.batches.create(
        input_file_id=file.id, endpoint=endpoint, completion_window=window, **fields
    )


def ended(client: openai.OpenAI, batch_id: str) -> Batch:
    """The batch once it has ended."""
    found: list[Batch] = []

    def is_over() -> bool:
        found.append(client.batches.retrieve(batch_id))
        return found[-1].status in DONE

    assert wait_until(is_over), found[-1]
    return found[-1]


def read_lines(client: openai.OpenAI, file_id: str | None) -> dict[str | None, Mapping[str, Any]]:
    """Lines of a result file by custom_id, each of which is there once."""
    assert file_id is not None
    found = [json.loads(line) for line in client.files.content(file_id).text.splitlines()]
    by_id = {each["custom_id"]: each for each in found}
    assert len(by_id) == len(found)
    return by_id
