"""Kill `muxcluster batch run` at random moments of `bench/batch.py`, and count its results."""

import json
import random
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tests.cli.batches import started, wait_until_ended

_LIMIT_S = 600.0


@dataclass(frozen=True, slots=True)
class Killed:
    """A job whose processes were killed on the way."""

    num_kills: int  # before the job was done
    custom_ids: list[str]  # of all lines of both result files


def run_killed(job: Path, output: Path, config: str, num_kills: int, seed: int) -> Killed:
    """Run a job to its end in as many processes as are killed, and one.

    Raises RuntimeError where the last one fails.
    """
    rng, num_killed = random.Random(seed), 0
    arguments = (str(job), "-o", str(output), "--config", config)
    count = len(job.read_bytes().splitlines())
    state = output.with_name(f"{output.name}.batch")
    for moment in sorted(rng.sample(range(int(0.8 * count)), num_kills)):
        process = started(*arguments)
        is_running = wait_until_ended(process, state, moment, _LIMIT_S)
        time.sleep(rng.uniform(0.0, 0.05))
        process.kill()
        process.communicate()
        num_killed += is_running and process.returncode != 0
    if not output.exists():
        process = started(*arguments)
        _, err = process.communicate(timeout=_LIMIT_S)
        if process.returncode:
            raise RuntimeError(f"batch run failed: {err}")
    errors = output.with_name(f"{output.stem}.errors{output.suffix}")
    found = [path.read_text().splitlines() for path in (output, errors) if path.exists()]
    ids = [json.loads(line)["custom_id"] for lines in found for line in lines]
    print(f"killed {num_killed} times: {len(ids)} results", file=sys.stderr, flush=True)
    return Killed(num_killed, ids)
