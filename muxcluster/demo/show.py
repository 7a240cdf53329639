"""The demonstration against a running server: check, burst, table and picture."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from rich.console import Console

from muxcluster.core.served import JobRecord
from muxcluster.demo.concurrency import Streamed, overlap_s, stream_together
from muxcluster.demo.replay import Sample, replay
from muxcluster.demo.report import summarise, table
from muxcluster.demo.text import docstrings
from muxcluster.demo.workload import Burst
from muxcluster.loadgen.exchange import Target

CHECK_TOKENS = 48

Ask = Callable[[str], Any]  # returns the answer of the server's `status` or `timeline`


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of the demonstration."""

    overlap_s: float  # seconds in which all models streamed at once
    samples: tuple[Sample, ...]

    @property
    def failures(self) -> list[str]:
        """Reasons why requests have no answer."""
        return [sample.error for sample in self.samples if sample.error is not None]


def perform(console: Console, url: str, ask: Ask, burst: Burst, out: Path) -> Outcome:
    """Run all of it against the server at `url`; the picture goes to `out`/timeline.svg, .png.

    Without matplotlib there is no picture. Raises EngineFailure if a model does not answer the
    first question.
    """
    target = Target.of(url)
    models = sorted({request.model for request in burst.requests})
    streams = asyncio.run(stream_together(target, models, CHECK_TOKENS))
    _show_streams(console, streams)
    quota_start = _quotas(ask("status"))
    console.print(f"The burst: {burst.source}.")
    samples = asyncio.run(replay(target, burst.requests, " ".join(docstrings()).split()))
    quota_end = _quotas(ask("status"))
    console.print(table(summarise(samples, quota_start, quota_end)))
    _draw(console, _jobs(ask("timeline")), samples, out / "timeline")
    return Outcome(overlap_s(streams), tuple(samples))


def _draw(
    console: Console, jobs: Sequence[JobRecord], samples: Sequence[Sample], stem: Path
) -> None:
    """Write the picture and print where it is, or what is missing to draw it."""
    try:
        timeline = import_module("muxcluster.demo.timeline")
    except ModuleNotFoundError as error:
        hint = f"no picture: it needs {error.name}: pip install 'muxcluster[plot]'"
        console.print(hint, markup=False)
        return
    # Jobs are timed with time.monotonic, samples with time.perf_counter: one clock on Linux.
    window = (min(s.start_s for s in samples), max(s.end_s for s in samples))
    svg, png = timeline.save(timeline.draw(jobs, window), stem)
    console.print(f"Who ran when, on which share of SMs: {svg} and {png.name}")


def _show_streams(console: Console, streams: Sequence[Streamed]) -> None:
    console.print("\nOne question to all models at once (the weights are random: text is noise):")
    origin_s = min(stream.first_s for stream in streams)
    for stream in streams:
        start, end = stream.first_s - origin_s, stream.last_s - origin_s
        console.print(
            f"  {stream.model}: streamed from {start:.2f} to {end:.2f} s, {_start(stream)}"
        )
    console.print(f"  all of them streamed at the same time for {overlap_s(streams):.2f} s\n")


def _start(stream: Streamed) -> str:
    return f"beginning {stream.text[:32]!r}"


def _quotas(status: Any) -> dict[str, int]:
    return {
        model["name"]: int(model["quota_blocks"])
        for unit in status["units"]
        for model in unit["models"]
    }


def _jobs(timeline: Any) -> list[JobRecord]:
    return [JobRecord(**job) for jobs in timeline.values() for job in jobs]
