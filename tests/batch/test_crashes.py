"""A batch of 10,000 lines whose process dies again and again: every line ends once."""

import json
import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from muxcluster.batch.store.job import Status, Use
from muxcluster.batch.store.store import BatchStore
from tests.batch.crashing import MOMENTS, NEVER, Death, run_batch
from tests.batch.jobs import line_of, read_results, submit

COUNT = 10_000
WRONG_EVERY = 100
"""Of so many lines one is no request."""


def _submit(folder: Path, count: int) -> None:
    store = BatchStore(folder)
    submit(
        store,
        (
            line_of(f"r-{i}", url=None if i % WRONG_EVERY == 7 else "/v1/completions")
            for i in range(count)
        ),
    )
    store.close()


def _dies(folder: Path, moment: str, count: int) -> bool:
    """Run the batch in a process that dies then; False where it came to its end first."""
    command = (sys.executable, "-m", "tests.batch.crashing", str(folder), moment, str(count))
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode != 0


def _check_recorded(folder: Path) -> int:
    """What is recorded is in the files, whole; how many lines that are."""
    store = BatchStore(folder)
    batch = store.get("b")
    counts = []
    for file_id, size in (
        (batch.output_file_id, batch.output_bytes),
        (batch.error_file_id, batch.error_bytes),
    ):
        data = store.path_of(file_id).read_bytes()[:size] if size else b""
        counts.append(len([json.loads(line) for line in data.splitlines()]))
    assert counts == [batch.num_completed, batch.num_failed]
    store.close()
    return sum(counts)


def _check_whole(folder: Path, count: int) -> None:
    """Every custom_id is in one of the two files, once, and in the right one."""
    store = BatchStore(folder)
    batch = store.get("b")
    assert batch.status is Status.COMPLETED
    output = read_results(store.path_of(batch.output_file_id))
    errors = read_results(store.path_of(batch.error_file_id))
    names = Counter(each["custom_id"] for each in [*output, *errors])
    assert names == Counter(f"r-{i}" for i in range(count))
    assert all(each["response"]["status_code"] == 200 for each in output)
    failed = {each["line"] for each in errors}
    expected = {i + 1 for i in range(count) if (i + 1) % 10 == 0 or i % WRONG_EVERY == 7}
    assert failed == expected
    assert (batch.num_completed, batch.num_failed) == (len(output), len(errors))
    num_answered = count - sum(i % WRONG_EVERY == 7 for i in range(count))
    assert batch.use == Use(3 * num_answered, num_answered, 2 * num_answered)
    store.close()


@pytest.mark.parametrize("moment", MOMENTS)
def test_it_may_die_at_every_step_of_a_write(tmp_path: Path, moment: str) -> None:
    """While the file is read for the first time, at the first result, and later."""
    _submit(tmp_path, 300)
    assert _dies(tmp_path, moment, 0)
    assert _dies(tmp_path, moment, 3)
    _check_recorded(tmp_path)
    run_batch(tmp_path, Death(NEVER, 0))
    _check_whole(tmp_path, 300)


def test_ten_thousand_lines_outlive_kills_at_random_moments(tmp_path: Path) -> None:
    _submit(tmp_path, COUNT)
    rng, num_recorded, num_deaths = random.Random(11), 0, 0
    for moment in rng.sample(MOMENTS, 4):
        count = rng.randrange(1500) if moment == "answering" else rng.randrange(12)
        num_deaths += _dies(tmp_path, moment, count)
        now = _check_recorded(tmp_path)
        assert now >= num_recorded
        num_recorded = now
    assert num_deaths >= 2
    assert num_recorded < COUNT
    run_batch(tmp_path, Death(NEVER, 0))
    _check_whole(tmp_path, COUNT)
