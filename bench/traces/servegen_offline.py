"""ServeGen's offline batch traces: all requests there from the start, some with shared blocks."""

from collections.abc import Iterator
from pathlib import Path

from muxcluster.core.request import ServiceClass
from muxcluster.workload.arrival import Arrival, Prefix
from muxcluster.workload.files.rows import Row, json_rows

BLOCK_TOKENS = 16


def read_servegen_offline(
    path: Path, model: str, output_tokens: int | None = None
) -> Iterator[Arrival]:
    """The requests of `trace_*.jsonl` in the file's order, batch class, all at time 0.

    output_tokens: for rows that do not tell (traces a and b). Raises ConfigError for malformed
    rows, and where a length is neither there nor given.
    """
    for row in json_rows(path):
        if row.fields.get("type") != "text":
            row.fail("type", f"expected 'text', found {row.fields.get('type')!r}")
        number = row.whole("request_id", 0)
        prompt = row.whole("input_length", 1)
        yield Arrival(
            0.0,
            f"{model}/{number}",
            model,
            prompt,
            _output(row, output_tokens),
            ServiceClass.BATCH,
            _prefix(row, prompt),
        )


def _output(row: Row, default: int | None) -> int:
    if "output_length" in row.fields:
        return row.whole("output_length", 1)
    if default is None or default < 1:
        row.fail("output_length", "expected this field, or a number of output tokens to assume")
    return default


def _prefix(row: Row, prompt_tokens: int) -> Prefix | None:
    if "hash_ids" not in row.fields:
        return None
    return Prefix(row.blocks("hash_ids", prompt_tokens, BLOCK_TOKENS), BLOCK_TOKENS)
