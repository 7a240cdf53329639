"""Workers are spawned together and believed only when all are ready and their shares differ."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from muxcluster.core.errors import EngineFailure
from muxcluster.core.job import WorkerSlot
from muxcluster.engine.gpu.manifest import Manifest
from muxcluster.engine.gpu.seating import Seated
from muxcluster.engine.gpu.staff import Staff
from tests.conftest import ROOT
from tests.engine.fakes import fake_spec

NOTHING = SimpleNamespace(manifest=Manifest((), ()))


def staff_of(monkeypatch: pytest.MonkeyPatch, says: str) -> Staff:
    monkeypatch.setenv("MUXCLUSTER_SAYS", says)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    spec = replace(fake_spec(), workers=(WorkerSlot(0, (0.3, 1.0)),))
    return Staff(spec, NOTHING, 100, "tests.engine_gpu.light_worker")


def test_workers_with_their_shares_are_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    staff = staff_of(monkeypatch, "ids")
    staff.assemble()
    assert [worker.seat.share for worker in staff.workers] == [0.3, 1.0]
    last = staff.at(1)
    assert staff.is_as_before(last, Seated(tuple(range(100, 200))))
    assert not staff.is_as_before(last, Seated(tuple(range(99))))
    staff.dismiss()


@pytest.mark.parametrize(
    ("says", "limit_s", "message"),
    [
        ("busy", 240.0, "worker 0 at SM share .*: the card refuses a context .*EXCLUSIVE_PROCESS"),
        ("end", 240.0, "worker process 0 at SM share .* ended at its start: exit status 7"),
        ("late", 0.2, "worker process 0 at SM share .* was not ready after 0 s"),
        ("all", 240.0, "SM shares 0.3 and 1 of worker 0 are equal or swapped: work ran on 100"),
    ],
)
def test_why_workers_are_not_ready(
    monkeypatch: pytest.MonkeyPatch, says: str, limit_s: float, message: str
) -> None:
    staff = staff_of(monkeypatch, says)
    with pytest.raises(EngineFailure, match=message):
        staff.assemble(limit_s)
    staff.dismiss()
