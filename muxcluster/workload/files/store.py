"""muxcluster's workload file: JSON lines, a header first, then one request per line.

Header: {"muxcluster_workload": 1, "note": "..."}. A request: {"time_s", "id", "model",
"prompt_tokens", "output_tokens"} and, where they apply, "class": "batch", "block_ids" with
"block_tokens". Names ending in .gz are compressed.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from muxcluster.core.request import ServiceClass
from muxcluster.workload.arrival import Arrival, Prefix
from muxcluster.workload.files.rows import Row, json_rows
from muxcluster.workload.files.streams import new_text

VERSION = 1
_HEADER = "muxcluster_workload"


def save(path: Path, arrivals: Iterable[Arrival], note: str = "") -> int:
    """Write the stream and return its number of requests; a failed write leaves no file.

    Times are kept exactly. Raises OSError, ValueError where time runs back.
    """
    count, latest_s = 0, 0.0
    with new_text(path) as file:
        file.write(json.dumps({_HEADER: VERSION, "note": note}) + "\n")
        for arrival in arrivals:
            if not arrival.time_s >= latest_s:
                raise ValueError(f"{arrival.request_id} comes before the request ahead of it")
            latest_s = arrival.time_s
            file.write(json.dumps(_fields(arrival), separators=(",", ":")) + "\n")
            count += 1
    return count


def load(path: Path) -> Iterator[Arrival]:
    """Yield the requests of a file that `save` wrote. Raises ConfigError."""
    rows = json_rows(path)
    header = next(rows, Row(path, 1, {}))
    if header.fields.get(_HEADER) != VERSION:
        header.fail(_HEADER, f"expected version {VERSION}, found {header.fields.get(_HEADER)!r}")
    latest_s = 0.0
    for row in rows:
        arrival = _arrival(row)
        if arrival.time_s < latest_s:
            row.fail("time_s", f"expected {latest_s} or later, found {arrival.time_s}")
        latest_s = arrival.time_s
        yield arrival


def _fields(arrival: Arrival) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "time_s": arrival.time_s,
        "id": arrival.request_id,
        "model": arrival.model,
        "prompt_tokens": arrival.prompt_tokens,
        "output_tokens": arrival.output_tokens,
    }
    if arrival.service_class is not ServiceClass.INTERACTIVE:
        fields["class"] = arrival.service_class.value
    if arrival.prefix is not None:
        fields["block_tokens"] = arrival.prefix.block_tokens
        fields["block_ids"] = arrival.prefix.block_ids
    return fields


def _arrival(row: Row) -> Arrival:
    prompt_tokens = row.whole("prompt_tokens", 1)
    prefix = None
    if "block_ids" in row.fields:
        block_tokens = row.whole("block_tokens", 1)
        prefix = Prefix(row.blocks("block_ids", prompt_tokens, block_tokens), block_tokens)
    return Arrival(
        row.number("time_s"),
        row.text("id"),
        row.text("model"),
        prompt_tokens,
        row.whole("output_tokens", 1),
        _service_class(row),
        prefix,
    )


def _service_class(row: Row) -> ServiceClass:
    name = row.fields.get("class", ServiceClass.INTERACTIVE.value)
    try:
        return ServiceClass(name)
    except ValueError:
        row.fail("class", f"expected one of {', '.join(ServiceClass)}, found {name!r}")
