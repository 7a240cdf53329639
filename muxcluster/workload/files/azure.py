"""Azure LLM inference trace 2023 (Patel et al., Splitwise, ISCA 2024): one service a file."""

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from muxcluster.core.request import ServiceClass
from muxcluster.workload.arrival import Arrival
from muxcluster.workload.files.rows import Row, csv_rows

_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_ORIGIN = datetime(2023, 1, 1)
_FRACTION = 10**7


def read_azure(
    path: Path, model: str, service_class: ServiceClass = ServiceClass.INTERACTIVE
) -> Iterator[Arrival]:
    """Yield the requests of `AzureLLMInferenceTrace_*.csv`, time 0 at the first.

    Raises ConfigError for rows that are malformed or out of order.
    """
    first = latest = None
    for index, row in enumerate(csv_rows(path, _COLUMNS)):
        ticks = _ticks(row)
        first = ticks if first is None else first
        if latest is not None and ticks < latest:
            row.fail("TIMESTAMP", "expected a time not before the row above")
        latest = ticks
        prompt, output = row.whole("ContextTokens", 1), row.whole("GeneratedTokens", 1)
        time_s = (ticks - first) / _FRACTION
        yield Arrival(time_s, f"{model}/{index}", model, prompt, output, service_class)


def _ticks(row: Row) -> int:
    """Return the time in units of 100 ns: the file has one digit more than datetime."""
    text = row.text("TIMESTAMP")
    seconds, point, fraction = text.partition(".")
    try:
        whole = datetime.strptime(seconds, "%Y-%m-%d %H:%M:%S")
    except ValueError:
        whole = None
    if whole is None or point and not (fraction.isdecimal() and len(fraction) <= 7):
        row.fail("TIMESTAMP", f"expected YYYY-MM-DD HH:MM:SS.fffffff, found {text!r}")
    since = whole - _ORIGIN
    return (since.days * 86_400 + since.seconds) * _FRACTION + int(fraction.ljust(7, "0") or 0)
