"""Clients that leave, and no host memory at all: what the others get stays Hugging Face's."""

import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from muxcluster.core.events import FinishReason
from muxcluster.core.job import Job
from muxcluster.engine.executors import make_executor
from tests.engine.hybrid_units import Crowd, Watched, hybrid_spec, serve_both, total
from tests.engine.units import check_nothing_leaks, running
from tests.oracles import GreedyOracle


@pytest.mark.parametrize("leaves", ["batch", "urgent0"])
def test_the_others_are_untouched(
    directories: Mapping[str, Path], oracles: Mapping[str, GreedyOracle], leaves: str
) -> None:
    """All clients of a kind leave as soon as blocks of batch requests are written over."""
    spec = hybrid_spec(directories)
    is_overwriting = threading.Event()

    def look(job: Job) -> None:
        if any(len(each.saves) for each in job.copies):
            is_overwriting.set()

    with running(spec, Watched(make_executor(spec), look)) as (unit, sink):
        crowd = Crowd(spec, unit, sink)
        names = crowd.submit("batch", 3, 40)
        sink.wait_for_tokens(names[-1], 3)
        crowd.submit("urgent0", 4, 12)
        assert is_overwriting.wait(60)
        left = {name for name in crowd.asked if name.split("/")[1] == leaves}
        for name in left:
            unit.abort(name)
        crowd.submit("urgent1", 4, 12)
        sink.wait_for_ends(len(crowd.asked))
        check_nothing_leaks(unit)
    reasons = {name: sink.reason(name) for name in crowd.asked}
    gone = {name for name, reason in reasons.items() if reason is FinishReason.ABORT}
    assert gone
    assert gone <= left
    for name in gone:
        del crowd.asked[name]
    crowd.check(oracles)


def test_without_host_memory_nobody_lends(
    directories: Mapping[str, Path], oracles: Mapping[str, GreedyOracle]
) -> None:
    spec = hybrid_spec(directories, host_frames=0)
    with running(spec) as (unit, sink):
        crowd = Crowd(spec, unit, sink)
        serve_both(crowd, sink, num_waves=4)
        stats = unit.stats()
    crowd.check(oracles)
    assert total(stats.models)["lent_columns"] == 0
