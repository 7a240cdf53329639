"""Units of embedding models: their requests, and a worker that dies amid them."""

import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from muxcluster.core.request import Request
from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.executor import JobFailed
from muxcluster.engine.unit.unit import Unit
from muxcluster.http.calls.embedding import SAMPLING
from tests.engine.fakes import Sink
from tests.engine.live_units import RecordingExecutor, workers_of
from tests.engine.units import check_nothing_leaks, greedy, prompts, running, submit
from tests.oracles import GreedyOracle

TOLERANCE = 1e-5  # of the numbers of a vector of length 1


def embed(unit: Unit, asked: Mapping[str, list[int]]) -> None:
    """Ask for the vectors of texts, by request: the name of its model, `/`, anything."""
    for request_id, tokens in asked.items():
        model = request_id.partition("/")[0]
        unit.submit(Request(request_id, model, np.array(tokens, dtype=np.int32), SAMPLING))


@contextmanager
def with_a_worker_killed(
    spec: UnitSpec, texts: Mapping[str, list[int]], chat: Path
) -> Iterator[tuple[Unit, Sink]]:
    """A unit that has answered `texts` and a few chats, although a worker was killed in a job.

    chat: the directory of `spec`'s last model, whose tokens are checked; then that nothing leaks.
    """
    chats = prompts(spec.models[-1].name, 4, spec.models[-1].vocab_size)
    executor = RecordingExecutor(spec)
    with running(spec, executor) as (unit, sink):
        victim = workers_of(executor.owner_pid, 2)[0]
        os.kill(victim, signal.SIGSTOP)
        embed(unit, texts)
        submit(unit, chats, greedy(8))
        executor.wait_for_job_on(0)
        os.kill(victim, signal.SIGKILL)
        sink.wait_for_ends(len(texts) + len(chats))
        oracle = GreedyOracle(chat)
        for request_id, prompt in chats.items():
            assert request_id not in sink.vectors
            oracle.check(prompt, sink.tokens[request_id])
        assert [type(each) for each in executor.misfortunes] == [JobFailed]
        check_nothing_leaks(unit)
        yield unit, sink
