"""Decode steps of every family do nothing that a CUDA graph cannot capture, on a fake device."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="Triton's wheels are for Linux")

from bench.kernels.fake_cuda import FakeCuda, decode_step, load
from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.steps.device.capture_lint import CaptureLint, NotCapturable
from muxcluster.engine.unit.in_process import InProcessExecutor
from tests.amounts import slow
from tests.engine.conftest import ModelBuilder, tiny
from tests.engine.driver import unit_of
from tests.engine.latents import needs_latents

__all__ = ["tiny"]

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "opt", "mixtral", "gemma2", "gpt_oss")


def on_gpu(directory: Path, **fields: object) -> UnitSpec:
    options = {"dtype": "bfloat16", "load_format": "dummy", **fields}
    return replace(unit_of(directory, **options), device="cuda:0")


@pytest.mark.parametrize("family", [*FAMILIES[:2], *slow(*FAMILIES[2:])])
@pytest.mark.parametrize(
    "fuses",
    [pytest.param(True, id="fused"), pytest.param(False, id="stock", marks=pytest.mark.slow)],
)
def test_a_decode_step_can_be_captured(tiny: ModelBuilder, family: str, fuses: bool) -> None:
    check_captured(replace(on_gpu(tiny(family)), fuses_layers=fuses))


@needs_latents
@pytest.mark.parametrize("family", ["deepseek_v2", "deepseek_v3"])
def test_a_decode_step_over_latents_can_be_captured(tiny: ModelBuilder, family: str) -> None:
    check_captured(on_gpu(tiny(family)))


def check_captured(unit: UnitSpec) -> None:
    with torch.inference_mode(), FakeCuda() as cuda:
        (model,) = load(unit)
        for shares in (False, True):
            for num_rows in (1, 8):
                step = decode_step(model, num_rows, shares=shares)
                with cuda.lint():
                    step.run()


def test_a_model_that_asks_the_device_is_found_before_a_capture_is_tried(
    tiny: ModelBuilder, caplog: pytest.LogCaptureFixture
) -> None:
    """This rotary embedding looks at the largest position."""
    rope = {"rope_type": "dynamic", "rope_theta": 5000.0, "factor": 2.0}
    unit = on_gpu(tiny("llama", rope_parameters=rope, num_hidden_layers=1))
    with torch.inference_mode(), FakeCuda() as cuda:
        executor = InProcessExecutor(unit)
        executor.start()
        executor.close()
    assert (cuda.graphs.captures, cuda.graphs.num_failed) == ([], 0)
    warnings = [each.message for each in caplog.records if "CUDA graphs" in each.message]
    assert len(warnings) == 1
    assert "which cannot capture" in warnings[0]


def test_a_planted_violation_is_caught_inside_a_whole_step(tiny: ModelBuilder) -> None:
    with torch.inference_mode(), FakeCuda() as cuda:
        (model,) = load(on_gpu(tiny("opt")))
        step, logits = decode_step(model, 4), model.forward.logits

        def logits_if_any(*args: Any, **options: Any) -> torch.Tensor:
            computed = logits(*args, **options)
            return computed if computed.isfinite().any() else torch.zeros_like(computed)

        model.forward.logits = logits_if_any  # type: ignore[method-assign]
        with pytest.raises(NotCapturable, match="waits"), cuda.lint():
            step.run()


def test_on_the_cpu_it_refuses_waiting_and_shapes_alone() -> None:
    x = torch.arange(4)
    with torch.inference_mode(), CaptureLint(x.device):
        assert (x + torch.tensor([1, 2, 3, 4])).shape == (4,)
        for ask in (lambda: x[0].item(), lambda: x.nonzero(), lambda: x[x > 1], lambda: bool(x[0])):
            with pytest.raises(NotCapturable):
                ask()
