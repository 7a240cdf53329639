"""Jobs over time, and a file of them for Perfetto or chrome://tracing."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_NS, _NS_OF_US = 1e9, 1e3


@dataclass(frozen=True, slots=True)
class JobSpan:
    """One job that ran, in seconds of virtual time."""

    unit_id: str
    model: str
    phase: str
    share: float
    start_s: float
    end_s: float
    num_rows: int
    num_tokens: int
    num_steps: int  # decode steps
    alone_s: float  # its seconds without neighbours


def write_timeline(spans: Iterable[JobSpan], path: Path) -> None:
    """Write Chrome's trace event format: a process per unit, a track per SM share.

    Events are named `model:phase:rows`. Jobs that run on equal shares at the same time get tracks
    of their own. Raises OSError.
    """
    ordered = sorted(spans, key=lambda span: (span.start_s, span.end_s))
    with path.open("w", encoding="utf-8") as file:
        file.write('{"displayTimeUnit": "ms", "traceEvents": [')
        for number, event in enumerate(_events(ordered)):
            file.write(",\n" if number else "\n")
            json.dump(event, file)
        file.write("\n]}\n")


def _events(spans: Iterable[JobSpan]) -> Iterator[Mapping[str, Any]]:
    """Yield the events. spans: sorted by start."""
    units: dict[str, int] = {}
    tracks: dict[tuple[str, float], list[float]] = {}
    for span in spans:
        if span.unit_id not in units:
            units[span.unit_id] = len(units)
            yield _name("process_name", units[span.unit_id], 0, f"unit {span.unit_id}")
        unit = units[span.unit_id]
        ends = tracks.setdefault((span.unit_id, span.share), [])
        lane = next((i for i, end in enumerate(ends) if end <= span.start_s), len(ends))
        track = round(1000 * span.share) * 100 + lane
        if lane == len(ends):
            ends.append(0.0)
            yield _name("thread_name", unit, track, f"{span.share:.0%} of the SMs")
        ends[lane] = span.end_s
        yield _event(span, unit, track)


def _name(kind: str, unit: int, track: int, name: str) -> Mapping[str, Any]:
    return {"ph": "M", "name": kind, "pid": unit, "tid": track, "args": {"name": name}}


def _event(span: JobSpan, unit: int, track: int) -> Mapping[str, Any]:
    """Return a job's event.

    Times are rounded to nanoseconds, so that a job ends no later than the next on its track begins.
    """
    start, end = (round(time_s * _NS) for time_s in (span.start_s, span.end_s))
    return {
        "ph": "X",
        "name": f"{span.model}:{span.phase}:{span.num_rows}",
        "cat": span.phase,
        "pid": unit,
        "tid": track,
        "ts": start / _NS_OF_US,
        "dur": (end - start) / _NS_OF_US,
        "args": {
            "tokens": span.num_tokens,
            "steps": span.num_steps,
            "alone_ms": round(1e3 * span.alone_s, 3),
        },
    }
