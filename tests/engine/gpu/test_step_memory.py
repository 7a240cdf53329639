"""What steps of real models take while they run, on a fake device, fits what is left for them."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="Triton's wheels are for Linux")

from transformers import LlamaConfig, MistralConfig, Qwen3Config

from bench.kernels.fake_cuda import FakeCuda, load
from muxcluster.config.facts import read_facts
from muxcluster.core.job import Job, Phase, Rows, TableDelta, WorkerSpec
from muxcluster.core.kvshape import KvShape
from muxcluster.core.unitspec import ModelSpec, SchedulerSpec, UnitSpec
from muxcluster.engine.forward.loaded_model import LoadedModel
from muxcluster.engine.processes.rungs import WorkerRung, rung_per_share
from muxcluster.engine.steps.device.captures import CudaGraphs
from muxcluster.engine.steps.device.steps import DeviceSteps
from muxcluster.engine.steps.runner import UnitMemory, UnitRunner
from muxcluster.placement import memory as planned
from muxcluster.placement.execution import Execution, UnitPolicy, executions, unshared
from muxcluster.placement.hardware import GPUS
from muxcluster.placement.memory import activation_bytes, recorded_bytes
from muxcluster.placement.problem import Demand, Limits
from tests.amounts import slow

LIMITS = Limits()
MAX_SEQS, MAX_TOKENS, NUM_LAYERS = 256, 4096, 2
SHAPES: Mapping[str, tuple[Any, Mapping[str, Any]]] = {
    "Llama-3-8B": (
        LlamaConfig,
        {"hidden_size": 4096, "intermediate_size": 14336, "vocab_size": 128256},
    ),
    "Llama-2-7B": (
        LlamaConfig,
        {
            "hidden_size": 4096,
            "intermediate_size": 11008,
            "vocab_size": 32000,
            "num_key_value_heads": 32,
        },
    ),
    "Llama-3.2-1B": (
        LlamaConfig,
        {"hidden_size": 2048, "intermediate_size": 8192, "vocab_size": 128256, "head_dim": 64},
    ),
    "Qwen3-8B": (
        Qwen3Config,
        {"hidden_size": 4096, "intermediate_size": 12288, "vocab_size": 151936},
    ),
    "Mistral-7B": (
        MistralConfig,
        {"hidden_size": 4096, "intermediate_size": 14336, "vocab_size": 32000},
    ),
}
"""Configurations, each with 32 query heads and, unless it says so, 8 of keys and values."""

JOBS = {
    "a fresh prompt": ([2048], 0),
    "a chunk": ([2048], 100),
    "many short prompts": ([8] * 256, 0),
    "a chunk beside decodes": ([1] * 255 + [1793], 100),
}


def spec_of(directory: Path, name: str) -> ModelSpec:
    kind, fields = SHAPES[name]
    heads = {"num_attention_heads": 32, "num_key_value_heads": 8}
    config = kind(
        **{
            "num_hidden_layers": NUM_LAYERS,
            "max_position_embeddings": MAX_TOKENS,
            "architectures": [kind.__name__.replace("Config", "ForCausalLM")],
            "sliding_window": None,
            **heads,
            **fields,
        }
    )
    config.save_pretrained(directory)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // 32
    return ModelSpec(
        name,
        str(directory),
        KvShape(NUM_LAYERS, config.num_key_value_heads, head_dim, 2),
        config.vocab_size,
        MAX_TOKENS,
        (2,),
        dtype="bfloat16",
        load_format="dummy",
        max_seqs=MAX_SEQS,
    )


def unit_of(model: ModelSpec, *, fuses: bool) -> UnitSpec:
    worker = WorkerSpec(0, (1.0,))
    unit = UnitSpec("u", (model,), 1000, 8192, (worker,), device="cuda:0", partition="none")
    return replace(unit, fuses_layers=fuses)


def job_bytes(cuda: FakeCuda, model: LoadedModel, counts: list[int], start: int) -> int:
    """Most that an eager step holds beside what is there before."""
    steps, num_rows = DeviceSteps(model, CudaGraphs(cuda.device)), len(counts)
    rows = Rows(
        np.arange(num_rows, dtype=np.int32),
        np.full(num_rows, start, dtype=np.int32),
        np.array(counts, dtype=np.int32),
        np.ones(num_rows, dtype=np.bool_),
    )
    steps.launch(rows, 1)  # checks of kernels are made once
    with cuda.recording() as recording:
        steps.launch(rows, 1)
    return recording.peak_bytes


def graph_bytes(cuda: FakeCuda, model: LoadedModel) -> int:
    """Most that a place holds when it has recorded all sizes, cuBLAS aside."""
    with cuda.recording() as recording:
        steps = DeviceSteps(model, CudaGraphs(cuda.device))
        steps.record(MAX_SEQS, 1.0)
    assert len(cuda.graphs.captures) == 9
    return recording.peak_bytes


def demand_of(folder: Path, name: str) -> Demand:
    """Of a model whose config.json is in the folder."""
    return Demand(name, read_facts(folder).shape, 1.0, 161.0, 338.0, MAX_TOKENS, MAX_SEQS)


QUICK = ("Qwen3-8B", "Mistral-7B")
NAMES = (*QUICK, *slow(*(name for name in SHAPES if name not in QUICK)))


@pytest.mark.parametrize("fuses", [True, False], ids=["fused", "stock"])
@pytest.mark.parametrize("name", NAMES)
def test_jobs_fit_the_planners_reserve(tmp_path: Path, name: str, fuses: bool) -> None:
    model = spec_of(tmp_path, name)
    reserve = activation_bytes(demand_of(tmp_path, name), LIMITS)
    with torch.inference_mode(), FakeCuda() as cuda:
        (loaded,) = load(unit_of(model, fuses=fuses))
        for job, (counts, start) in JOBS.items():
            assert sum(counts) <= LIMITS.token_budget
            taken = job_bytes(cuda, loaded, counts, start)
            assert 0.1 * reserve < taken <= reserve, job


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_recorded_steps_fit_what_the_pool_leaves_for_them(tmp_path: Path, name: str) -> None:
    model = spec_of(tmp_path, name)
    with torch.inference_mode(), FakeCuda() as cuda:
        (loaded,) = load(unit_of(model, fuses=True))
        taken = graph_bytes(cuda, loaded)
    workspace = 32 * 2**20
    gpu, demand, one_place = GPUS["A100-80GB"], demand_of(tmp_path, name), unshared("mixed")
    reserve = recorded_bytes(gpu, 1, demand, one_place)
    reserve += planned.recording_bytes(gpu, 1, [demand], one_place)
    assert 0.8 * reserve - workspace < taken <= reserve - workspace


A100 = GPUS["A100-80GB"]
_SHARES = SchedulerSpec(may_unshare=False)
EXECUTIONS: Mapping[str, Execution] = {
    "one worker, mixed": unshared("mixed"),
    "one worker, in turns": unshared("temporal"),
    "one model": executions(A100, 1, 1)[1],
    "sharing": executions(A100, 1, 3)[0],
    "always sharing": executions(A100, 1, 3, UnitPolicy(_SHARES))[0],
    "wide": executions(A100, 4, 3)[0],
    "round robin": executions(A100, 1, 2, UnitPolicy(SchedulerSpec(lane="round-robin")))[0],
}


def rung_jobs(execution: Execution, rung: WorkerRung) -> list[Job]:
    """Jobs of every kind that the scheduler gives the rung, of rows with one token to compute."""
    worker = next(each for each in execution.workers if each.worker_id == rung.worker_id)
    share = rung.share or 1.0
    phases = set(worker.phases)
    if not (execution.runs_mixed and share == worker.shares[-1]):
        phases.discard(Phase.MIXED)
    rows = Rows(
        *(np.arange(4, dtype=np.int32) for _ in range(2)),
        np.ones(4, np.int32),
        np.ones(4, np.bool_),
    )
    none = np.empty(0, dtype=np.int32)
    tables = TableDelta(none, none, np.empty((0, 16), dtype=np.int32))
    return [
        Job(number, "Llama-3.2-1B", phase, worker.worker_id, share, rows, tables)
        for number, phase in enumerate(sorted(phases))
    ]


def recording_bytes(
    cuda: FakeCuda, unit: UnitSpec, memory: UnitMemory, execution: Execution
) -> list[int]:
    """What each rung has taken once it recorded steps and ran jobs."""
    runners, taken = [], []
    for rung in rung_per_share(execution.workers):
        before = cuda.live_bytes
        runners.append(runner := UnitRunner(unit, memory))
        runner.record(rung.worker_id, rung.share or 1.0)
        for job in rung_jobs(execution, rung):
            runner.launch(job).result()
            runner.record_next()
        taken.append(cuda.live_bytes - before)
    return taken


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [
        "one worker, mixed",
        "sharing",
        *slow(*sorted({*EXECUTIONS} - {"one worker, mixed", "sharing"})),
    ],
)
def test_as_many_rungs_take_memory_for_recorded_steps_as_the_plan_counts(
    tmp_path: Path, kind: str
) -> None:
    execution = EXECUTIONS[kind]
    model = spec_of(tmp_path, "Llama-3.2-1B")
    logits_bytes = 4 * MAX_SEQS * model.vocab_size
    unit = replace(unit_of(model, fuses=True), workers=execution.workers)
    with torch.inference_mode(), FakeCuda() as cuda:
        memory = UnitRunner(unit).memory
        taken = recording_bytes(cuda, unit, memory, execution)
    assert sum(each >= logits_bytes for each in taken) == execution.num_recordings
    assert all(each >= logits_bytes or each < 0.1 * logits_bytes for each in taken)
