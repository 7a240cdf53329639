"""The engine's steps for GPUs on interpreted Triton kernels: Hugging Face's greedy tokens.

Everything is as on a GPU (layouts, index types, upload, rows that fill up) but for the device, and
for graphs, in whose place a step is called again.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from muxcluster.core.job import Side
from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.decoders import kernel_decoder
from muxcluster.engine.decoders.kernel_fusing import forward_on_gpu
from muxcluster.engine.forward import paged_attention as attention_paged
from muxcluster.engine.forward.paged_forward import Forward
from muxcluster.engine.load.paged_loading import load_model
from muxcluster.engine.memory.arena import Arena
from muxcluster.engine.sampling import plain
from muxcluster.engine.steps.device.captures import CallAgain
from muxcluster.engine.steps.runner import UnitMemory, UnitRunner
from muxcluster.kernels.on_gpu import triton_kernel
from tests.amounts import slow
from tests.engine.conftest import ModelBuilder, tiny
from tests.engine.driver import Driver, ragged, unit_of
from tests.engine.latents import needs_latents
from tests.engine.stepping import SteppedUnit
from tests.engine.unit.test_prefix_shared import groups, serve, spec
from tests.oracles import GreedyOracle

__all__ = ["tiny"]

ATTENTION = (
    *("kv_write", "paged_decode", "paged_prefill", "prefix_attention"),
    "latent_attention",
)
LAYERS = ("add_rms_norm", "rotary", "silu_mul")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """How often each Triton kernel was called; all are interpreted, on tensors of the CPU."""
    counts: Counter[str] = Counter()

    def counted(name: str) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            counts[name] += 1
            return triton_kernel(name)(*args, **options)

        return call

    modules = {attention_paged: ATTENTION, kernel_decoder: LAYERS, plain: ("sample",)}
    for module, names in modules.items():
        for name in names:
            monkeypatch.setattr(module, name, counted(name))
    # Whole prompts go through our kernel too, as where torch's attention does not take them.
    monkeypatch.setattr(attention_paged, "takes_prompts", lambda *args: False)
    yield counts


def runner_of(unit: UnitSpec, *, fuses: bool) -> UnitRunner:
    (model,) = unit.models
    forward = forward_on_gpu(load_model(model, "cpu"), model, fuses=fuses)
    assert isinstance(forward, Forward) == (not fuses)
    return UnitRunner(unit, UnitMemory({model.name: forward}, Arena(unit)), CallAgain())


@pytest.mark.parametrize(
    ("family", "fuses"),
    [
        ("qwen3", True),
        ("gemma2", False),
        *slow(
            ("llama", True),
            ("llama", False),
            ("qwen2", True),
            ("mistral", True),
            ("opt", False),
            ("mixtral", False),
        ),
    ],
)
def test_prompts_chunks_and_decodes_in_one_job(
    tiny: ModelBuilder, calls: Counter[str], family: str, fuses: bool
) -> None:
    directory = tiny(family, num_hidden_layers=2)
    unit = unit_of(directory, max_seqs=4)
    driver = Driver(runner_of(unit, fuses=fuses), unit.models[0], iter(range(unit.num_blocks)))
    prompts = [prompt[:40] for prompt in ragged(driver.spec.vocab_size, 4)]
    oracle = GreedyOracle(directory)
    for sequence in driver.run(prompts, 5, chunk=17):
        oracle.check(sequence.tokens[: sequence.num_prompt], sequence.output)
    assert oracle.num_near_ties <= 1
    asked = {"kv_write", "paged_decode", "paged_prefill", "sample"} | (
        set(LAYERS) if fuses else set()
    )
    assert set(calls) == asked


@pytest.mark.slow
@pytest.mark.parametrize("fuses", [True, False], ids=["fused", "stock"])
def test_rows_that_share_a_prefix(tiny: ModelBuilder, calls: Counter[str], fuses: bool) -> None:
    directory = tiny("llama")
    unit_spec = spec(directory)
    unit = SteppedUnit(unit_spec, runner_of(unit_spec, fuses=fuses))
    assert serve(unit, groups("llama", 4), GreedyOracle(directory)) > 0
    assert calls["prefix_attention"] > 0
    assert calls["paged_prefill"] > 0


@needs_latents
@pytest.mark.parametrize("family", [*slow("deepseek_v2"), "deepseek_v3"])
def test_latents(tiny: ModelBuilder, calls: Counter[str], family: str) -> None:
    directory = tiny(family)
    unit = unit_of(directory, max_seqs=4)
    driver = Driver(runner_of(unit, fuses=False), unit.models[0], iter(range(unit.num_blocks)))
    prompts = [prompt[:40] for prompt in ragged(driver.spec.vocab_size, 4)]
    oracle = GreedyOracle(directory)
    for sequence in driver.run(prompts, 5, chunk=17, side=Side.RIGHT):
        oracle.check(sequence.tokens[: sequence.num_prompt], sequence.output)
    assert oracle.num_near_ties <= 1
    assert set(calls) == {"kv_write", "latent_attention", "sample"}
