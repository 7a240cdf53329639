"""bench/gpu/partitions.py without a GPU: what it says, and that its jobs visit every share."""

from pathlib import Path
from typing import Any

import pytest
import torch

from bench.gpu.partition_runs.jobs import WORKERS, pairs, unit_of, write_models
from bench.gpu.partition_runs.part import DRY_TOKENS, executor_of, play
from bench.gpu.partitions import LIMITS_S, verdict
from muxcluster.core.job import Phase
from muxcluster.engine.gpu.green.executor import GreenExecutor
from muxcluster.engine.processes.executor import ProcessExecutor
from muxcluster.engine.unit.in_process import InProcessExecutor
from tests.bench.gpu_scripts import record_of, run_bare


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("models")
    write_models(made)
    return made


def test_jobs_visit_every_two_shares_and_no_block_twice(folder: Path) -> None:
    spec = unit_of(folder, "cpu", "none")
    made = list(pairs(spec, 6))
    assert {(p.share, d.share) for p, d in made} == {
        (p, d) for p in WORKERS[0].shares for d in WORKERS[1].shares
    }
    assert {p.phase for p, _ in made} == {Phase.PREFILL}
    blocks = [block for p, _ in made for block in p.tables.blocks.ravel().tolist()]
    assert len(set(blocks)) == len(blocks)
    assert max(blocks) < spec.num_blocks


def test_threads_of_one_process_and_one_after_the_other_agree(folder: Path) -> None:
    said = []
    for partition, kind in (("none", InProcessExecutor), ("green", GreenExecutor)):
        spec = unit_of(folder, "cpu", partition)
        executor = executor_of(spec)
        assert isinstance(executor, kind)
        executor.start()
        said.append(play(executor, spec))
        executor.close()
    assert said[0] == said[1]
    assert {len(tokens) for tokens in said[0]} == {DRY_TOKENS}
    assert len({tuple(tokens) for tokens in said[0]}) > 4
    processes = executor_of(unit_of(folder, "cpu", "mps"))
    assert isinstance(processes, ProcessExecutor)
    processes.close()


RAN: dict[str, Any] = {"tokens": [[1, 2]], "seen": ["40 at 0.3"], "start_s": 1.0, "jobs_s": 0.5}


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (RAN | {}, "tokens equal; multiprocessors seen: 40 at 0.3; started in 1.0 s"),
        (RAN | {"tokens": [[1, 3]]}, "tokens DIFFER"),
        (RAN | {"seen": []}, "tokens equal; nothing is confined here"),
        ({"failure": "no daemon"}, "not run: no daemon"),
        (RAN, "the reference"),
    ],
)
def test_what_is_said_of_a_partition(found: dict[str, Any], says: str) -> None:
    assert verdict(found, RAN).startswith(says)


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(tmp_path: Path) -> None:
    done = run_bare("partitions.py", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("no GPU: nothing was run")


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_dry_run_needs_msgspec_for_processes_alone(tmp_path: Path) -> None:
    record = record_of("partitions.py", "--dry", cwd=tmp_path, timeout_s=1400)
    verdicts = {row["case"]: row["verdict"] for row in record["rows"]}
    assert verdicts.keys() == LIMITS_S.keys()
    assert verdicts["green"].startswith("tokens equal")
    assert "msgspec" in verdicts["mps"]
    assert record["parts"]["mps"]["verdict"] == "failed"
    assert record["claims"] == []
