"""The partition chooses the executor; the in-process one survives a job that raises."""

import builtins
import subprocess
import sys
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from muxcluster.core.errors import ConfigError, EngineFailure
from muxcluster.core.job import Admission, Job, Phase, Rows, TableDelta
from muxcluster.core.sampling import SamplingParams
from muxcluster.engine.executor import JobDone, JobFailed
from muxcluster.engine.gpu.green.executor import GreenExecutor
from muxcluster.engine.gpu.mps.launcher import MpsExecutor
from muxcluster.engine.processes.executor import ProcessExecutor
from muxcluster.engine.residency.executor import ResidencyExecutor
from muxcluster.engine.unit.executor_choice import make_executor
from muxcluster.engine.unit.in_process import InProcessExecutor
from muxcluster.engine.unit.unit import Unit
from tests.engine.conftest import ModelBuilder
from tests.engine.fakes import fake_spec
from tests.engine.residency.moved import in_turns
from tests.engine.units import spec_of


def test_the_partition_names_the_executor() -> None:
    spec = fake_spec()
    assert isinstance(make_executor(replace(spec, partition="none")), InProcessExecutor)
    executor = make_executor(replace(spec, partition="threads"))
    assert isinstance(executor, ProcessExecutor)
    executor.close()


@pytest.mark.parametrize(
    "wrong",
    [{"partition": "mps"}, {"partition": "green"}, {"device": "cuda:0"}, {"partition": "dice"}],
)
def test_what_cannot_be_had_is_refused_by_name(wrong: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"partition"):
        make_executor(replace(fake_spec(), **wrong))


@pytest.mark.parametrize(
    "wrong",
    [
        {"partition": "none"},
        {"device": "cuda:0", "partition": "mps"},
        {"device": "cuda:0", "partition": "green"},
        {"tp": 2},
    ],
)
def test_models_take_turns_in_memory_only_where_the_executor_can_move_them(
    wrong: dict[str, Any],
) -> None:
    spec = replace(in_turns(fake_spec(), 1), partition="threads")
    executor = make_executor(spec)
    assert isinstance(executor, ResidencyExecutor)
    executor.close()
    with pytest.raises(ConfigError, match="resident_bytes: models cannot take turns in memory"):
        make_executor(replace(spec, **wrong))


def test_a_unit_refuses_an_executor_that_keeps_all_models() -> None:
    spec = in_turns(fake_spec(), 1)
    with pytest.raises(ConfigError, match="resident_bytes: InProcessExecutor keeps all models"):
        Unit(spec, lambda deltas: None, executor=InProcessExecutor(spec))


def test_a_gpu_has_its_own_partitions() -> None:
    on_gpu = replace(fake_spec(), device="cuda:0")
    executor = make_executor(replace(on_gpu, partition="mps"))
    assert isinstance(executor, MpsExecutor)
    executor.close()
    assert isinstance(make_executor(replace(on_gpu, partition="green")), GreenExecutor)


@pytest.mark.parametrize("name", ["msgspec", "msgspec._core"], ids=["absent", "another Python's"])
def test_processes_without_their_protocol_are_refused(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    real = builtins.__import__

    def absent(module: str, *others: Any) -> ModuleType:
        if module == "muxcluster.engine.gpu.mps.launcher":
            raise ModuleNotFoundError(f"no {name}", name=name)
        return real(module, *others)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(ConfigError, match="worker processes, which need msgspec"):
        make_executor(replace(fake_spec(), device="cuda:0", partition="mps"))


def test_a_job_that_raises_in_this_process_fails_alone(tiny: ModelBuilder) -> None:
    spec = spec_of([tiny("llama")], partition="none")
    executor = InProcessExecutor(spec)
    executor.start()
    width = spec.models[0].shape.blocks_per_column
    rows = Rows(
        table_rows=np.zeros(1, dtype=np.int32),
        starts=np.zeros(1, dtype=np.int32),
        counts=np.full(1, 3, dtype=np.int32),
        samples=np.ones(1, dtype=np.bool_),
    )
    admission = Admission(0, "r", np.arange(3, dtype=np.int32), 3, SamplingParams(temperature=0.0))

    def job(job_id: int, column: int) -> Job:
        blocks = np.arange(width, dtype=np.int32)[None]
        tables = TableDelta(np.zeros(1, dtype=np.int32), np.full(1, column, dtype=np.int32), blocks)
        return Job(job_id, "llama", Phase.PREFILL, 0, 1.0, rows, tables, (admission,))

    executor.launch(job(1, column=10_000))
    executor.launch(job(2, column=0))
    (failed,) = executor.wait(None)
    assert isinstance(failed, JobFailed)
    assert failed.job_id == 1
    assert "IndexError" in failed.message
    (done,) = executor.wait(None)
    assert isinstance(done, JobDone)
    assert done.result.counts.tolist() == [1]
    executor.wake()
    assert executor.wait(None) == []
    with pytest.raises(EngineFailure):
        executor.restart()
    executor.close()


def test_a_unit_with_worker_processes_does_not_import_torch() -> None:
    """Its own process loads no model: torch would take memory and seconds of its start."""
    modules = ("engine.unit.unit", "engine.gpu.mps.launcher", "engine.profile.pairs")
    program = (
        f"import sys, {', '.join(f'muxcluster.{name}' for name in modules)}; "
        "sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
