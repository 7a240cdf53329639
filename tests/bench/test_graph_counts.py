"""How many decode steps the systems of bench/gpu/multiplex.py record before they are ready.

Each takes 0.1 to 0.3 s on a GPU, so that their number decides how long a start takes.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="Triton's wheels are for Linux")

from bench.gpu.multiplexing.systems import GPU_SITE, SYSTEMS, System, shared_unit
from bench.gpu.multiplexing.work import Work, tenants_of
from bench.kernels.fake_cuda import FakeCuda
from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.gpu.green.executor import GreenExecutor
from muxcluster.engine.gpu.green.parts import Part
from muxcluster.engine.processes.rungs import WorkerRung, rung_per_share
from muxcluster.engine.steps.device.captures import CudaGraphs, Step
from muxcluster.engine.steps.runner import UnitRunner
from muxcluster.engine.unit.in_process import InProcessExecutor

pytestmark = pytest.mark.slow

SIZES = ("1b", "1b", "1b", "1b")
BY_NAME = {system.name: system for system in SYSTEMS}


class Streams:
    """A stream a rung, as of green contexts."""

    def open(self, rungs: Sequence[WorkerRung]) -> Mapping[int, Part]:
        device = torch.device("cuda:0")
        return {
            rung.rung_id: Part(None, torch.cuda.ExternalStream(100 + rung.rung_id, device))
            for rung in rungs
        }

    def close(self) -> None:
        pass


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[int]]:
    """How many were recorded, by place; no step is run."""
    counts: Counter[int] = Counter()

    def capture(self: CudaGraphs, step: Step) -> Step:
        counts[self.place] += 1
        return step

    monkeypatch.setattr(CudaGraphs, "capture", capture)
    with torch.inference_mode(), FakeCuda():
        yield counts


def unit_of(folder: Path, system: System, sizes: Sequence[str] = SIZES) -> UnitSpec:
    work = Work(tenants_of(sizes, 1.0, tiny=False), 8.0, 20.0, 1.0, 0)
    return shared_unit(folder, work, GPU_SITE, system)


def test_green_contexts_record_a_third_of_what_they_did(
    tmp_path: Path, graphs: Counter[int]
) -> None:
    """468 in one thread before: 13 sizes of 4 models in 9 contexts."""
    executor = GreenExecutor(unit_of(tmp_path, BY_NAME["adbs-green"]), lambda spec: Streams())
    executor.start()
    executor.close()
    assert graphs.total() <= 150
    # Rungs in order: prefill at 0.3, 0.5 and 1.0, then twice decode at 0.3, 0.5, 0.7 and 1.0.
    assert sorted(graphs) == list(range(103, 111))
    assert graphs[103] <= graphs[104] <= graphs[105] < graphs[106]


def test_no_process_of_mps_records_more_than_one_model_has_sizes_for(
    tmp_path: Path, graphs: Counter[int]
) -> None:
    unit = unit_of(tmp_path, BY_NAME["adbs-mps"])
    memory = UnitRunner(unit).memory
    counts = []
    for rung in rung_per_share(unit.workers):
        graphs.clear()
        UnitRunner(unit, memory).record(rung.worker_id, rung.share or 1.0)
        counts.append(graphs.total())
    assert len(counts) == 11
    assert counts[:3] == [0, 0, 0]
    assert max(counts) <= 8 * len(SIZES)
    assert sum(counts) <= 150


def test_one_process_records_one_set(tmp_path: Path, graphs: Counter[int]) -> None:
    executor = InProcessExecutor(unit_of(tmp_path, BY_NAME["temporal"], SIZES[:1]))
    executor.start()
    executor.close()
    assert graphs.total() == 8
