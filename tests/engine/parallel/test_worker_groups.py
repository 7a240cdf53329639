"""Units over several ranks whose workers are groups of processes: outputs and losses.

Greedy tokens are Hugging Face's, whatever dies and however late a rank is.
"""

import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from muxcluster.core.job import Job, Phase, WorkerSpec
from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.executor import JobDone, JobFailed, Outcome, OwnerLost, StillRunning
from muxcluster.engine.parallel import rank_link, rank_owners
from muxcluster.engine.parallel.executor import RanksExecutor
from muxcluster.engine.parallel.group_executor import GroupExecutor
from muxcluster.engine.processes.liveness import Patience
from muxcluster.engine.unit.unit import Unit
from tests.blocks import scaled
from tests.engine.fakes import Sink
from tests.engine.live_units import SAMPLED, wait_until_gone, workers_of
from tests.engine.parallel.conftest import ModelBuilder
from tests.engine.parallel.ranks import over_ranks
from tests.engine.units import (
    check_lengths,
    check_nothing_leaks,
    greedy,
    prompts,
    running,
    spec_of,
    submit,
)
from tests.oracles import GreedyOracle

pytestmark = [
    pytest.mark.usefixtures("fast_children"),
    pytest.mark.timeout(scaled(600, 8)),
]

LONGEST, NUM_TOKENS = scaled(50, 8), scaled(24, 8)
HALF = (0.5,)
PREFILL = WorkerSpec(0, HALF, frozenset({Phase.PREFILL}))
DECODE = WorkerSpec(1, HALF, frozenset({Phase.DECODE}))
THREE = (
    WorkerSpec(0, (0.3, 0.5), frozenset({Phase.PREFILL})),
    WorkerSpec(1, (0.3, 0.5, 0.7), frozenset({Phase.DECODE})),
    WorkerSpec(2, (0.3, 0.5, 0.7), frozenset({Phase.DECODE})),
)
LATE_RANK = "tests.engine.parallel.delayed_rank"


class Recorder:
    """Passes all on to an executor; notes which workers were busy together, and every loss."""

    def __init__(self, executor: GroupExecutor | RanksExecutor) -> None:
        self.executor = executor
        self.running: dict[int, int] = {}
        self.most_together = 0
        self.losses: list[JobFailed | OwnerLost] = []
        self.num_followed = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self.executor, name)

    def launch(self, job: Job) -> None:
        self.running[job.job_id] = job.worker_id
        self.most_together = max(self.most_together, len(set(self.running.values())))
        self.num_followed += job.follows is not None
        self.executor.launch(job)

    def wait(self, timeout_s: float | None) -> Sequence[Outcome]:
        outcomes = self.executor.wait(timeout_s)
        for outcome in outcomes:
            if isinstance(outcome, JobDone):
                del self.running[outcome.result.job_id]
            elif isinstance(outcome, JobFailed):
                del self.running[outcome.job_id]
                self.losses.append(outcome)
            elif not isinstance(outcome, StillRunning):
                self.running.clear()
                self.losses.append(outcome)
        return outcomes


@dataclass
class Wide:
    """A running unit over ranks, and Hugging Face's models."""

    spec: UnitSpec
    recorder: Recorder
    unit: Unit
    sink: Sink
    oracles: Mapping[str, GreedyOracle]

    def asked(self, count: int, seed: int = 0) -> dict[str, list[int]]:
        asked: dict[str, list[int]] = {}
        for model in self.spec.models:
            asked |= prompts(model.name, count, model.vocab_size, longest=LONGEST, seed=seed)
        return asked

    def finish(self, asked: dict[str, list[int]]) -> dict[str, list[int]]:
        self.sink.wait_for_ends(len(asked))
        check_lengths(self.sink, asked, NUM_TOKENS)
        check_nothing_leaks(self.unit)
        tokens = dict(self.sink.tokens)
        self.sink.clear()
        return tokens

    def check(self, asked: dict[str, list[int]]) -> None:
        """All end, with Hugging Face's tokens; near-ties are excused and counted."""
        tokens = self.finish(asked)
        for oracle in self.oracles.values():
            oracle.num_near_ties = 0
        for request_id, prompt in asked.items():
            self.oracles[request_id.split("/")[0]].check(prompt, tokens[request_id])
        assert sum(o.num_near_ties for o in self.oracles.values()) <= len(asked) // 20

    def workers(self) -> list[list[int]]:
        """Process ids by rank, then by worker."""
        pids = self.recorder.executor.rank_pids
        return [workers_of(pid, len(self.spec.workers)) for pid in pids]


@contextmanager
def wide(
    directories: Sequence[Path],
    *,
    size: int = 2,
    workers: tuple[WorkerSpec, ...] = (PREFILL, DECODE),
    partition: str = "threads",
    num_columns: int = 28,
    pipeline_depth: int = 1,
) -> Iterator[Wide]:
    single = spec_of(directories, num_columns=num_columns)
    scheduler = replace(single.scheduler, pipeline_depth=pipeline_depth)
    spec = over_ranks(single, size, partition=partition)
    spec = replace(spec, workers=workers, num_threads=2 * size, scheduler=scheduler)
    make = GroupExecutor if partition == "threads" else RanksExecutor
    recorder = Recorder(make(spec, Patience(silence_s=2.0)))
    oracles = {path.name: GreedyOracle(path) for path in directories}
    with running(spec, recorder) as (unit, sink):
        yield Wide(spec, recorder, unit, sink, oracles)


@pytest.fixture(scope="module")
def live(tiny: ModelBuilder) -> Iterator[Wide]:
    """Two ranks, two workers, two models."""
    with wide([tiny("llama", "llama"), tiny("qwen2", "qwen2")]) as unit:
        yield unit


@pytest.mark.slow
def test_prefill_and_decode_overlap_with_hugging_faces_tokens(live: Wide) -> None:
    asked = live.asked(8)
    submit(live.unit, asked, greedy(NUM_TOKENS))
    live.check(asked)
    assert live.recorder.most_together == 2


def test_a_killed_process_restarts_its_group_alone(live: Wide) -> None:
    """The decode worker of rank 1: the prefill workers go on, and so do their jobs."""
    before = live.workers()
    live.recorder.losses.clear()
    asked = live.asked(4, seed=1)
    submit(live.unit, asked, greedy(NUM_TOKENS))
    live.sink.wait_for_tokens(next(iter(asked)), 5)
    os.kill(before[1][1], signal.SIGKILL)
    live.check(asked)
    after = live.workers()
    assert [rank[0] for rank in before] == [rank[0] for rank in after]
    assert not {rank[1] for rank in before} & {rank[1] for rank in after}
    assert {each.worker_id for each in live.recorder.losses if isinstance(each, JobFailed)} <= {1}
    assert not any(isinstance(each, OwnerLost) for each in live.recorder.losses)
    wait_until_gone([rank[1] for rank in before])


@pytest.mark.slow  # test_ranks.py shows it of ranks without workers
def test_a_killed_owner_restarts_all_ranks(live: Wide) -> None:
    pids = live.recorder.executor.rank_pids
    workers = [pid for rank in live.workers() for pid in rank]
    asked = live.asked(3, seed=2)
    submit(live.unit, asked, greedy(NUM_TOKENS))
    live.sink.wait_for_tokens(next(iter(asked)), 3)
    os.kill(pids[0], signal.SIGKILL)
    live.check(asked)
    wait_until_gone([*pids, *workers])
    assert not set(pids) & set(live.recorder.executor.rank_pids)


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_stopped_process_restarts_its_group_alone(live: Wide, rank: int) -> None:
    before = live.workers()
    asked = live.asked(3, seed=3 + rank)
    submit(live.unit, asked, greedy(NUM_TOKENS))
    live.sink.wait_for_tokens(next(iter(asked)), 3)
    os.kill(before[rank][1], signal.SIGSTOP)
    live.check(asked)
    assert [each[0] for each in before] == [each[0] for each in live.workers()]
    wait_until_gone([each[1] for each in before])


@pytest.mark.slow
def test_a_stopped_owner_restarts_all_ranks(live: Wide) -> None:
    pids = live.recorder.executor.rank_pids
    asked = live.asked(3, seed=6)
    submit(live.unit, asked, greedy(NUM_TOKENS))
    live.sink.wait_for_tokens(next(iter(asked)), 3)
    os.kill(pids[1], signal.SIGSTOP)
    live.check(asked)
    wait_until_gone(list(pids))


@pytest.mark.slow
def test_sampled_outputs_are_those_of_one_rank(live: Wide) -> None:
    """Seeds, penalties, truncation: both workers of every rank draw what a unit of one draws."""
    asked = live.asked(3, seed=7)
    sampled = replace(SAMPLED, max_tokens=NUM_TOKENS)
    submit(live.unit, asked, sampled, seeded=True)
    tokens = live.finish(asked)
    single = spec_of([Path(m.path) for m in live.spec.models], lane="temporal", partition="none")
    with running(single) as (unit, sink):
        submit(unit, asked, sampled, seeded=True)
        sink.wait_for_ends(len(asked))
        assert sink.tokens == tokens


@pytest.mark.slow
def test_workers_that_are_threads_of_a_rank_overlap_too(tiny: ModelBuilder) -> None:
    """As under `green`, where a rank is one process: a communicator a worker, jobs pipelined."""
    directories = [tiny("llama", "llama"), tiny("qwen2", "qwen2")]
    workers = (replace(PREFILL, shares=(0.3, 0.5)), replace(DECODE, shares=(0.3, 0.5, 0.7)))
    with wide(directories, workers=workers, partition="green", pipeline_depth=2) as unit:
        asked = unit.asked(6)
        submit(unit.unit, asked, greedy(NUM_TOKENS))
        unit.check(asked)
        assert unit.recorder.most_together == 2
        assert unit.recorder.num_followed > 0
        assert not unit.recorder.losses


MATRIX_MODELS: Mapping[str, Mapping[str, object]] = {
    "llama": {},
    "qwen2": {"tie_word_embeddings": False},
    "llama-tied": {"tie_word_embeddings": True, "vocab_size": 515},
}


@pytest.mark.slow
@pytest.mark.parametrize("partition", ["threads", "green"])
@pytest.mark.parametrize("num_workers", [2, 3])
@pytest.mark.parametrize("size", [2, 4])
def test_late_ranks_and_a_loss_amid_jobs(
    tiny: ModelBuilder,
    monkeypatch: pytest.MonkeyPatch,
    size: int,
    num_workers: int,
    partition: str,
) -> None:
    """Three models, every rank late in its own way; then a process of the last rank is killed."""
    monkeypatch.setattr(rank_owners, "OWNER_MODULE", LATE_RANK)
    monkeypatch.setattr(rank_link, "RANK_MODULE", LATE_RANK)
    monkeypatch.setenv("MUXCLUSTER_LATE_S", "0.03")
    directories = [
        tiny(
            f"{name}-4", name.split("-")[0], num_attention_heads=4, num_key_value_heads=4, **fields
        )
        for name, fields in MATRIX_MODELS.items()
    ]
    with wide(
        directories,
        size=size,
        workers=THREE[:num_workers],
        partition=partition,
        pipeline_depth=2,
        num_columns=42,
    ) as unit:
        asked = unit.asked(6)
        submit(unit.unit, asked, greedy(NUM_TOKENS))
        unit.check(asked)
        assert unit.recorder.most_together == num_workers
        assert unit.recorder.num_followed > 0
        assert not unit.recorder.losses
        asked = unit.asked(3, seed=1)
        submit(unit.unit, asked, greedy(NUM_TOKENS))
        unit.sink.wait_for_tokens(next(iter(asked)), 4)
        if partition == "threads":
            os.kill(unit.workers()[-1][num_workers - 1], signal.SIGKILL)
        else:
            os.kill(unit.recorder.executor.rank_pids[-1], signal.SIGKILL)
        unit.check(asked)
