"""One partition of bench/gpu/partitions.py in a process of its own: PARTITION FOLDER DEVICE.

Prints its tokens, what was seen of the shares and how long it took, as JSON.
"""

import json
import logging
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from time import monotonic
from typing import Any

if __name__ == "__main__":
    sys.path.pop(0)  # the script's folder, whose kernels.py would hide the package
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from bench.gpu.partition_runs.jobs import pairs, unit_of
from bench.gpu.running.children import die_with_parent
from muxcluster.core.job import Job
from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.executor import Executor, JobDone, StillRunning
from muxcluster.engine.unit.executor_choice import make_executor

OUTPUT_TOKENS, DRY_TOKENS = 24, 6
SEEN = "multiprocessors seen: "


def executor_of(spec: UnitSpec) -> Executor:
    """What the unit would run on; on the CPU its stand-in."""
    if spec.device != "cpu" or spec.partition == "none":
        return make_executor(spec)
    if spec.partition == "green":
        from muxcluster.engine.gpu.green.executor import GreenExecutor

        return GreenExecutor(spec)
    # The protocol of child processes needs msgspec, which is asked for only here.
    from muxcluster.engine.gpu.mps.launcher import GPU_PATIENCE, MpsLauncher
    from muxcluster.engine.processes.executor import ProcessExecutor

    return ProcessExecutor(spec, GPU_PATIENCE, MpsLauncher(None))


def play(executor: Executor, spec: UnitSpec) -> list[list[int]]:
    """Tokens of each pair: its prefill beside the decode of the pair before, where one may be."""
    tokens: dict[int, list[int]] = {}
    before: Job | None = None
    num_tokens = DRY_TOKENS if spec.device == "cpu" else OUTPUT_TOKENS
    for prefill, decode in pairs(spec, num_tokens):
        together = [prefill] if before is None else [prefill, before]
        _run(executor, together, tokens)
        before = decode
    if before is not None:
        _run(executor, [before], tokens)
    numbers = range(0, 2 * (len(tokens) // 2), 2)
    return [tokens[number] + tokens[number + 1] for number in numbers]


def _run(executor: Executor, jobs: list[Job], tokens: dict[int, list[int]]) -> None:
    for job in jobs:
        executor.launch(job)
    left = len(jobs)
    while left:
        for outcome in executor.wait(60.0):
            if isinstance(outcome, StillRunning):
                continue
            if not isinstance(outcome, JobDone):
                raise RuntimeError(f"a job did not end well: {outcome}")
            tokens[outcome.result.job_id] = outcome.result.tokens.tolist()
            left -= 1


def measure(partition: str, folder: Path, device: str) -> dict[str, Any]:
    """Start, run all jobs, stop. Raises EngineFailure: why this partition cannot be had."""
    spec = unit_of(folder, device, partition)
    executor = executor_of(spec)
    start = monotonic()
    try:
        executor.start()
        ready = monotonic()
        tokens = play(executor, spec)
        ended = monotonic()
    finally:
        executor.close()
    return {"tokens": tokens, "start_s": ready - start, "jobs_s": ended - ready}


def main(partition: str, folder: Path, device: str) -> int:
    """What the owner logs to standard error is looked through for what it saw of the shares."""
    with tempfile.TemporaryFile("w+") as log:
        errors = os.dup(2)
        os.dup2(log.fileno(), 2)
        logging.basicConfig(level=logging.INFO, format="%(message)s")
        found: Mapping[str, Any] = {}
        try:
            found = measure(partition, folder, device)
        except Exception as failure:  # noqa: BLE001 - the failure is the finding
            found = {"failure": f"{type(failure).__name__}: {failure}"}
        finally:
            os.dup2(errors, 2)
            log.seek(0)
            lines = log.read().splitlines()
    seen = [line.partition(SEEN)[2] for line in lines if SEEN in line]
    if "failure" in found:
        print("\n".join(lines[-30:]), file=sys.stderr)
    print(json.dumps({**found, "seen": seen}))
    return 0


if __name__ == "__main__":
    die_with_parent()
    sys.exit(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3]))
