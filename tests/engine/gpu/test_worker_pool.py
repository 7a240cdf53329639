"""Workers are spawned together and believed only when all are ready and their shares differ."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from muxcluster.core.errors import EngineFailure
from muxcluster.core.job import WorkerSpec
from muxcluster.engine.gpu.memory.manifest import Manifest, Placed
from muxcluster.engine.gpu.mps.messages import StartWorker, WorkerReady, encode
from muxcluster.engine.gpu.mps.worker_pool import WorkerPool
from muxcluster.engine.processes.rungs import WorkerRung, rung_per_share
from tests.amounts import slow
from tests.conftest import ROOT
from tests.engine.fakes import fake_spec

NOTHING = SimpleNamespace(manifest=Manifest((), ()))
SPEC = replace(fake_spec(), workers=(WorkerSpec(0, (0.3, 1.0)),))


def worker_pool_of(monkeypatch: pytest.MonkeyPatch, says: str) -> WorkerPool:
    monkeypatch.setenv("MUXCLUSTER_SAYS", says)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return WorkerPool(SPEC, NOTHING, 100, "tests.engine.gpu.light_worker")


@pytest.mark.slow
def test_workers_with_their_shares_are_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    worker_pool = worker_pool_of(monkeypatch, "ids")
    worker_pool.start()
    assert [worker.rung.share for worker in worker_pool.workers] == [0.3, 1.0]
    last = worker_pool.at(1)
    assert worker_pool.is_as_before(last, WorkerReady(tuple(range(100, 200))))
    assert not worker_pool.is_as_before(last, WorkerReady(tuple(range(99))))
    worker_pool.end()


@pytest.mark.parametrize(
    ("says", "limit_s", "message"),
    [
        *slow(
            (
                "busy",
                240.0,
                "worker 0 at SM share .*: the GPU refuses a context .*EXCLUSIVE_PROCESS",
            )
        ),
        ("end", 240.0, "worker process 0 at SM share .* ended at its start: exit status 7"),
        ("late", 0.2, "worker process 0 at SM share .* was not ready after 0 s"),
        ("all", 240.0, "SM shares 0.3 and 1 of worker 0 are equal or swapped: work ran on 100"),
    ],
)
def test_why_workers_are_not_ready(
    monkeypatch: pytest.MonkeyPatch, says: str, limit_s: float, message: str
) -> None:
    worker_pool = worker_pool_of(monkeypatch, says)
    with pytest.raises(EngineFailure, match=message):
        worker_pool.start(limit_s)
    worker_pool.end()


@pytest.mark.timeout(180)
@pytest.mark.parametrize("num_bytes", [*slow(400_000), 4_000_000])
def test_workers_that_read_late_hold_up_nobody(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, num_bytes: int
) -> None:
    """None reads its manifest, which fits in no socket's buffer, before all are spawned."""
    monkeypatch.setenv("MUXCLUSTER_SAYS", "sized")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("MUXCLUSTER_READS_AFTER", str(tmp_path / "spawned"))
    tensor = Placed("weights/llama/model.layers.0.mlp.weight", None, 0, "bfloat16", (0,), (1,))
    manifest = Manifest((), (tensor,) * (num_bytes // 60))
    assert len(encode(StartWorker(SPEC, WorkerRung(0, 0, 0.3), manifest))) > num_bytes
    memory = SimpleNamespace(manifest=manifest)
    worker_pool = WorkerPool(SPEC, memory, 100, "tests.engine.gpu.light_worker")
    try:
        workers = [worker_pool.spawn(rung) for rung in rung_per_share(SPEC.workers)]
        (tmp_path / "spawned").touch()
        counts = [
            len(said.sm_ids) for each in workers if isinstance(said := each.hear(), WorkerReady)
        ]
        assert counts == [len(manifest.tensors)] * len(workers)
    finally:
        worker_pool.end()
