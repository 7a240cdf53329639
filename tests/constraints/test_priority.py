"""Compiling gives way to the steps of running requests, and is done all the same."""

import os
import threading

import numpy as np
import pytest

from muxcluster.constraints import grammars
from muxcluster.constraints.matching import BadGrammar, Matching, TokenMasks
from muxcluster.constraints.process import priority, supervisor
from muxcluster.constraints.process.client import MaskClient
from muxcluster.constraints.process.priority import NICE, Starved, run_quietly
from muxcluster.constraints.process.supervisor import MaskProcess
from muxcluster.constraints.rows import MaskModel, MaskRow
from muxcluster.constraints.vocabulary import load_vocabulary
from muxcluster.core.sampling import Constraint
from tests.constraints.test_process import children_of, wait_until

PERSON = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}


def own() -> tuple[int, int]:
    """This thread's policy and its value of `nice`."""
    return os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0)


def test_quick_work_has_a_low_priority_and_its_waiter_keeps_its_own() -> None:
    before = own()
    assert run_quietly(own) == (os.SCHED_OTHER, NICE)
    assert own() == before


@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="the system has no such policy")
def test_long_work_gets_the_lowest_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(priority, "LEAST_SHARE", 0.0)  # whatever else runs here

    def work() -> bool:
        while os.sched_getscheduler(0) != os.SCHED_IDLE:
            pass
        return True

    assert run_quietly(work)


def test_errors_are_those_of_the_work() -> None:
    def work() -> None:
        raise BadGrammar("no")

    with pytest.raises(BadGrammar, match="no"):
        run_quietly(work)


def test_work_without_a_processor_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(priority, "PATIENCE_S", 0.01)
    monkeypatch.setattr(priority, "QUICK_CPU_S", 0.0)
    event = threading.Event()
    with pytest.raises(Starved):
        run_quietly(event.wait)
    event.set()


@pytest.fixture
def plain(model_of) -> MaskModel:
    return model_of("bytes")


def test_what_is_starved_is_done_with_a_higher_priority(
    plain: MaskModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checks and the compiling for the server alike, and nothing is left of the first tries."""
    monkeypatch.setattr(supervisor, "_KEEPER", "tests.constraints.starving")
    process = MaskProcess([plain])
    constraint = Constraint(grammars.json_schema(PERSON, "schema"))
    row = MaskRow("bytes", "r", constraint, np.empty(0, np.int32))
    try:
        assert process.check("bytes", constraint) is None
        assert "foo" in (process.check("bytes", Constraint(grammars.lark("start: foo", "p"))) or "")
        client = MaskClient(process.address)
        found = client.begin([row]).wait()
        client.close()
        assert process.num_restarts == 0
        pid = process.pid
        assert pid is not None

        def has_only_the_server() -> bool:
            process.check("bytes", Constraint(grammars.regex("[", "p")))  # it reaps, too
            return len(children_of(pid)) <= 2  # the last check's first try may not have ended

        wait_until(has_only_the_server)
    finally:
        process.close()
    wanted = Matching({"bytes": TokenMasks(load_vocabulary(plain))}).masks([row])
    assert np.array_equal(found.bits, wanted.bits)


def test_a_mask_process_has_a_group_but_no_session_of_its_own(plain: MaskModel) -> None:
    process = MaskProcess([plain])
    try:
        assert process.check("bytes", Constraint(grammars.json_object())) is None
        pid = process.pid
        assert pid is not None
        for each in (pid, *children_of(pid)):
            assert (os.getsid(each), os.getpgid(each)) == (os.getsid(0), pid)
    finally:
        process.close()
