"""`--timeline`: the jobs of all cases as one file, with a process per unit of a case."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from muxcluster.cli.simulating.comparison import Prepared
from muxcluster.core.errors import ConfigError
from muxcluster.sim.cases.case import Case, PartSink, run_case
from muxcluster.sim.cases.sweep import PartProgress
from muxcluster.sim.core.timeline import JobSpan, write_timeline
from muxcluster.sim.report.report import CaseReport

SPAN_S = 60.0  # a longer file opens slowly; the last minute under load shows the steady state


def traced(prepared: Prepared, path: Path, progress: PartProgress) -> list[CaseReport]:
    """Simulate the cases again one by one, write their jobs to `path`, and return the reports.

    The file is written whole or not at all. Raises ConfigError if it cannot be written.
    """
    spans: list[JobSpan] = []
    reports: list[CaseReport] = []
    for case in prepared.cases:

        def tell(part: float, num_done: int = len(reports)) -> None:
            progress(num_done + part, len(prepared.cases))

        reports.append(_run(case, spans, tell))
        progress(len(reports), len(prepared.cases))
    try:
        _write(spans, Path(os.path.realpath(path)))
    except OSError as error:
        raise ConfigError(path, "", f"cannot be written: {error.strerror}") from error
    return reports


def _write(spans: Sequence[JobSpan], target: Path) -> None:
    """Write the spans; a device or pipe is written to directly."""
    if target.exists() and not target.is_file():
        write_timeline(spans, target)
        return
    part = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        write_timeline(spans, part)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def _run(case: Case, spans: list[JobSpan], tell: PartSink) -> CaseReport:
    start_s = max(0.0, case.duration_s - SPAN_S)
    label = f"{case.system.name} x{case.rate_scale:g}"

    def keep(span: JobSpan) -> None:
        if span.end_s >= start_s and span.start_s < case.duration_s:
            spans.append(replace(span, unit_id=f"{label} {span.unit_id}"))

    return run_case(case, keep, tell)
