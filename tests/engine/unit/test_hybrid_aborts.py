"""Clients that leave, and no host memory at all: what the others get stays Hugging Face's."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from muxcluster.core.events import FinishReason
from muxcluster.core.job import Job
from muxcluster.engine.unit.executor_choice import make_executor
from tests.engine.hybrid_units import (
    BATCH_TOKENS,
    NUM_BATCH,
    NUM_URGENT,
    URGENT_TOKENS,
    Crowd,
    hybrid_spec,
    serve_both,
    total,
)
from tests.engine.lockstep import Lockstep, Script
from tests.engine.units import check_nothing_leaks, running
from tests.oracles import GreedyOracle


@pytest.mark.parametrize("leaves", ["batch", "urgent0"])
def test_the_others_are_untouched(
    directories: Mapping[str, Path], oracles: Mapping[str, GreedyOracle], leaves: str
) -> None:
    """All clients of a kind leave as soon as blocks of batch requests are written over."""
    spec = hybrid_spec(directories)
    overwriting: list[int] = []

    def look(job: Job) -> None:
        if any(len(each.saves) for each in job.copies):
            overwriting.append(job.job_id)

    lockstep = Lockstep(make_executor(spec), look)
    with running(spec, lockstep, lockstep) as (unit, sink):
        crowd = Crowd(spec, unit, sink)

        def script() -> Script:
            batch = crowd.submit("batch", NUM_BATCH, BATCH_TOKENS)
            yield lambda: crowd.have(batch, 3)
            urgent = crowd.submit("urgent0", NUM_URGENT, URGENT_TOKENS)
            yield lambda: bool(overwriting)
            for name in batch if leaves == "batch" else urgent:
                unit.abort(name)
            crowd.submit("urgent1", NUM_URGENT, URGENT_TOKENS)
            yield crowd.have_ended

        lockstep.play(script())
        check_nothing_leaks(unit)
    reasons = {name: sink.reason(name) for name in crowd.asked}
    gone = {name for name, reason in reasons.items() if reason is FinishReason.ABORT}
    assert gone
    assert {name.split("/")[1] for name in gone} == {leaves}
    for name in gone:
        del crowd.asked[name]
    crowd.check(oracles)


def test_without_host_memory_nobody_lends(
    directories: Mapping[str, Path], oracles: Mapping[str, GreedyOracle]
) -> None:
    spec = hybrid_spec(directories, host_frames=0)
    served = serve_both(spec, Lockstep(make_executor(spec)), num_waves=4)
    served.crowd.check(oracles)
    assert total(served.stats.models)["lent_columns"] == 0
