"""A unit on a GPU that is not the first: every thread that works for it makes it its device."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="Triton's wheels are for Linux")

from bench.kernels.fake_cuda import FakeCuda
from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.unit.in_process import InProcessExecutor
from tests.engine.conftest import ModelBuilder, tiny
from tests.engine.driver import drivers, unit_of

__all__ = ["tiny"]


@pytest.fixture
def cuda() -> Iterator[FakeCuda]:
    with torch.inference_mode(), FakeCuda() as entered:
        yield entered


def on_second_gpu(directory: Path) -> UnitSpec:
    return replace(unit_of(directory, load_format="dummy"), device="cuda:1")


@pytest.mark.slow
def test_the_thread_that_starts_an_executor_works_on_its_device(
    cuda: FakeCuda, tiny: ModelBuilder
) -> None:
    """Triton launches on the current device, whichever the tensors are on."""
    executor = InProcessExecutor(on_second_gpu(tiny("llama", num_hidden_layers=1)))
    executor.start()
    assert cuda.graphs.captures
    executor.close()


def test_so_does_a_thread_that_runs_jobs_or_records(cuda: FakeCuda, tiny: ModelBuilder) -> None:
    (driver,) = drivers(on_second_gpu(tiny("llama")))
    cuda.graphs.device_index = 0  # where a new thread begins
    rows = [driver.admit([1, 2, 3]), driver.admit([4, 5])]
    with cuda.recording() as recording:
        driver.step(rows, chunk=10)
    assert recording.count()["prefill_kernel"] == 3  # layers
    cuda.graphs.device_index = 0
    driver.step(rows, chunk=1)
    assert cuda.graphs.captures
    for work in (lambda: driver.runner.record(0), driver.runner.record_next):
        cuda.graphs.device_index = 0
        work()
        assert cuda.graphs.device_index == 1
