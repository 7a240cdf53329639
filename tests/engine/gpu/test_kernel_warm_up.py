"""No kernel is compiled while a worker serves: random steps meet only what its warm-up met.

Keys under which Triton compiles are those of a fake device, which launches nothing.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="Triton's wheels are for Linux")

from bench.kernels.fake_cuda import FakeCuda, KernelKey
from muxcluster.core.job import Phase, Rows, SharedPrefixes, WorkerSpec
from muxcluster.core.unitspec import SchedulerSpec, UnitSpec
from muxcluster.engine.forward.prefix_rows import side_by_side
from muxcluster.engine.gpu.green import executor as green
from muxcluster.engine.gpu.green.executor import GreenExecutor
from muxcluster.engine.gpu.memory.manifest import Manifest
from muxcluster.engine.gpu.mps import worker as mps_worker
from muxcluster.engine.gpu.mps.messages import StartWorker
from muxcluster.engine.gpu.sm_probe import SmProbe
from muxcluster.engine.processes.rungs import WorkerRung
from muxcluster.engine.steps.device.captures import CallAgain
from muxcluster.engine.steps.runner import UnitRunner
from muxcluster.engine.unit import in_process
from muxcluster.engine.unit.in_process import InProcessExecutor
from tests.amounts import slow
from tests.engine.conftest import ModelBuilder, tiny
from tests.engine.driver import unit_of
from tests.engine.fakes import fake_spec
from tests.engine.latents import needs_latents

__all__ = ["tiny"]

TOKEN_BUDGET, MAX_ROWS, MAX_TOKENS = 2048, 96, 1500


@dataclass(frozen=True)
class Case:
    """A model of one layer of its kind. dtype, num_sms: of the model and the device."""

    family: str
    overrides: dict[str, Any]
    dtype: str = "bfloat16"
    num_sms: int = 132
    fuses: bool = True


CASES = {
    "llama": Case("llama", {"num_attention_heads": 8, "head_dim": 128}),
    "llama on transformers' layers": Case("llama", {"head_dim": 128}, fuses=False),
    "llama on a small share": Case("llama", {}, num_sms=14),
    "llama in fp32": Case("llama", {}, dtype="float32"),
    "one KV head for seven": Case(
        "qwen2", {"hidden_size": 448, "num_attention_heads": 14, "head_dim": 32}
    ),
    "norms of heads": Case("qwen3", {"num_attention_heads": 2}),
    "no groups, heads of 80": Case("opt", {"head_dim": 80, "word_embed_proj_dim": 320}),
    "a sliding window": Case("mistral", {}),
    "capped scores": Case("gemma2", {"num_hidden_layers": 2}),
    "latents": Case("deepseek_v3", {}),
}


def unit_for(directory: Path, case: Case, phases: frozenset[Phase] = frozenset(Phase)) -> UnitSpec:
    unit = unit_of(
        directory,
        max_seqs=MAX_ROWS,
        max_model_len=MAX_TOKENS,
        dtype=case.dtype,
        load_format="dummy",
    )
    return replace(
        unit,
        device="cuda:0",
        workers=(WorkerSpec(0, (1.0,), phases),),
        scheduler=SchedulerSpec(token_budget=TOKEN_BUDGET),
        fuses_layers=case.fuses,
    )


QUICK = ("llama", "a sliding window")


LATENTS = pytest.param("latents", marks=[needs_latents, pytest.mark.slow])
OTHERS = (name for name in CASES if name not in (*QUICK, "latents"))


@pytest.fixture(params=[*QUICK, *slow(*OTHERS), LATENTS], ids=str)
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


def random_rows(rng: np.random.Generator, phases: frozenset[Phase]) -> Rows:
    """Rows of a job as a scheduler might make it."""
    num_rows = int(rng.integers(1, rng.choice([3, 9, MAX_ROWS]) + 1))
    counts = np.ones(num_rows, dtype=np.int32)
    if phases != {Phase.DECODE}:
        chosen = rng.random(num_rows) < rng.random()
        longest = max(2, (TOKEN_BUDGET - num_rows) // max(1, int(chosen.sum())))
        longest = int(rng.integers(2, min(longest, MAX_TOKENS - 1) + 1))
        counts[chosen] = rng.integers(1, longest + 1, int(chosen.sum()))
    starts = np.where(rng.random(num_rows) < 0.3, 0, rng.integers(0, MAX_TOKENS - counts))
    samples = np.ones(num_rows, dtype=np.bool_)
    if phases != {Phase.DECODE}:
        samples = rng.random(num_rows) < rng.choice([0.0, 0.5, 1.0])
    table_rows = rng.permutation(MAX_ROWS)[:num_rows].astype(np.int32)
    prefixes = None
    if rng.random() < 0.5:
        leaders = rng.choice(table_rows, num_rows)
        tokens = np.where(counts == 1, rng.choice([0, 128], num_rows), 0)
        tokens = np.where(np.isin(leaders, leaders[:1]), 0, tokens)  # a row's leader decides
        prefixes = SharedPrefixes(leaders.astype(np.int32), tokens.astype(np.int32))
    return side_by_side(Rows(table_rows, starts.astype(np.int32), counts, samples, prefixes))[0]


def met(
    runner: UnitRunner, cuda: FakeCuda, num_steps: int, phases: frozenset[Phase]
) -> Iterator[tuple[Rows, set[KernelKey]]]:
    """Random steps, and the kernels that each one launches."""
    rng = np.random.default_rng(num_steps)
    (model,) = runner._models.values()
    for _ in range(num_steps):
        rows = random_rows(rng, phases)
        num_more = int(rng.integers(1, 3)) if rows.samples.all() else 1
        with cuda.recording() as recording:
            model.launch(rows, num_more)
        assert not recording.syncs, rows
        yield rows, recording.kernel_keys


def check(case: Case, directory: Path, num_steps: int, phases: frozenset[Phase]) -> None:
    with torch.inference_mode(), FakeCuda(num_sms=case.num_sms) as cuda:
        runner = UnitRunner(unit_for(directory, case, phases), capture=CallAgain())
        with cuda.recording() as warm:
            runner.warm_up(0)
        kernels = {name for name, _ in warm.kernel_keys}
        seen: set[KernelKey] = set()
        for rows, keys in met(runner, cuda, num_steps, phases):
            assert keys <= warm.kernel_keys, (rows, keys - warm.kernel_keys)
            seen |= keys
        assert {name for name, _ in seen} == kernels  # none is compiled in vain


def built(tiny: ModelBuilder, case: Case) -> Path:
    return tiny(case.family, **{"num_hidden_layers": 1, **case.overrides})


@pytest.mark.slow
def test_random_jobs_meet_no_kernel_that_was_not_warmed_up(tiny: ModelBuilder, case: Case) -> None:
    check(case, built(tiny, case), 40, frozenset(Phase))


@pytest.mark.slow
def test_a_decode_worker_warms_up_decodes_alone(tiny: ModelBuilder) -> None:
    check(CASES["llama"], built(tiny, CASES["llama"]), 40, frozenset({Phase.DECODE}))


@pytest.mark.slow
def test_hundreds_more_of_each_kind(tiny: ModelBuilder, case: Case) -> None:
    check(case, built(tiny, case), 300, frozenset(Phase))


def test_a_warm_up_touches_no_sequence(tiny: ModelBuilder) -> None:
    """On the kernels' twins: with real numbers, on the CPU."""
    unit = replace(unit_for(tiny("llama"), CASES["llama in fp32"]), device="cpu")
    runner = UnitRunner(unit, capture=CallAgain())
    model = runner.arena.model(unit.models[0].name)
    model.history.random_(0, 500)
    runner.arena.pool.view(torch.float32).normal_()
    own = (runner.arena.pool, model.tables, model.history[:-1], model.from_right)
    before = [tensor.clone() for tensor in own]
    runner.warm_up(0)
    assert all(torch.equal(a, b) for a, b in zip(own, before, strict=True))


class Noting:
    """A runner that runs nothing; `calls` are those of all such runners, in order."""

    calls: list[tuple[str, int]]
    backends = ()

    def __init__(self, spec: UnitSpec, memory: object = None) -> None:
        self.memory = memory or object()

    def warm_up(self, worker_id: int) -> None:
        self.calls.append(("warm up", worker_id))

    def record(self, worker_id: int, share: float = 1.0) -> None:
        self.calls.append(("record", worker_id))


class AllInOne:
    """Parts of a device that is not there."""

    def open(self, rungs: Sequence[WorkerRung]) -> dict[int, "AllInOne"]:
        return dict.fromkeys((rung.rung_id for rung in rungs), self)

    def entered(self) -> AbstractContextManager[None]:
        return nullcontext()

    def close(self) -> None:
        pass


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """What executors ask of runners, which are fakes as the device is."""
    found: list[tuple[str, int]] = []
    monkeypatch.setattr(Noting, "calls", found, raising=False)
    for module in (in_process, green, mps_worker):
        monkeypatch.setattr(module, "UnitRunner", Noting)
    monkeypatch.setattr(in_process, "open_own_context", lambda device, environment: None)
    monkeypatch.setattr(mps_worker, "open_context", lambda device, spec, environment: None)
    monkeypatch.setattr(mps_worker, "mapped_memory", lambda spec, manifest: manifest)
    monkeypatch.setattr(SmProbe, "__init__", lambda probe, device: None)
    monkeypatch.setattr(SmProbe, "run", lambda probe: frozenset({0}))
    return found


ON_GPU = replace(
    fake_spec(),
    device="cuda:0",
    workers=(
        WorkerSpec(0, (0.5, 1.0), frozenset({Phase.PREFILL})),
        WorkerSpec(1, (0.5, 1.0), frozenset({Phase.DECODE})),
    ),
)


def test_a_unit_in_this_process_warms_up_before_it_is_ready(calls: list[tuple[str, int]]) -> None:
    InProcessExecutor(ON_GPU).start()
    assert calls == [("warm up", 0), ("record", 0)]


def test_green_workers_warm_up_once_each_before_they_are_ready(
    calls: list[tuple[str, int]],
) -> None:
    executor = GreenExecutor(ON_GPU, lambda spec: AllInOne())
    executor.start()
    executor.close()
    expected = [("warm up", 0), ("record", 0), ("record", 0)]
    assert calls == expected + [(what, 1) for what, _ in expected]


@pytest.mark.parametrize("worker_id", [0, 1])
def test_a_worker_process_warms_up_before_it_is_ready(
    calls: list[tuple[str, int]], worker_id: int
) -> None:
    mps_worker.make_runner(StartWorker(ON_GPU, WorkerRung(3, worker_id, 0.5), Manifest((), ())))
    assert calls == [("warm up", worker_id), ("record", worker_id)]
