"""A model is loaded for the backend that can serve it, and one line says which and why."""

import logging
from dataclasses import replace
from pathlib import Path

import pytest
from torch import nn

from muxcluster.core.errors import LoadError
from muxcluster.core.kvshape import KvShape
from muxcluster.core.unitspec import ModelSpec
from muxcluster.engine.dense.model import DenseModel
from muxcluster.engine.gpu.memory.shared import OwnedMemory
from muxcluster.engine.load.backends import load
from muxcluster.engine.load.hf_config import NotPaged
from muxcluster.engine.quantised.linear import FastLinear
from tests.engine.conftest import ModelBuilder
from tests.engine.dense.units import unit_of

LLAMA = KvShape(3, 2, 64, 4)
OTHER = KvShape(2, 4, 32, 4)

REMOTE = """
from transformers import BloomConfig, BloomForCausalLM

class OwnConfig(BloomConfig):
    model_type = "own_kind"

class OwnModel(BloomForCausalLM):
    config_class = OwnConfig
"""


def spec_of(directory: Path, shape: KvShape = OTHER, **fields: object) -> ModelSpec:
    return ModelSpec("m", str(directory), shape, 512, 256, (), **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("family", "reason"),
    [("bloom", "asked for attention"), ("mpt", "cannot be served"), ("mamba", "paged")],
)
def test_dense_where_paged_cannot_be(
    tiny: ModelBuilder, caplog: pytest.LogCaptureFixture, family: str, reason: str
) -> None:
    with caplog.at_level(logging.INFO, "muxcluster.engine.load.backends"):
        assert isinstance(load(spec_of(tiny(family)), "cpu"), DenseModel)
    (record,) = [each for each in caplog.records if each.name == "muxcluster.engine.load.backends"]
    assert record.getMessage().startswith("m: dense backend: ")
    with pytest.raises(NotPaged, match=reason):
        load(spec_of(tiny(family), backend="paged"), "cpu")


def test_paged_where_it_can_be_unless_asked_otherwise(
    tiny: ModelBuilder, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "muxcluster.engine.load.backends"):
        assert isinstance(load(spec_of(tiny("llama"), LLAMA), "cpu"), nn.Module)
        assert isinstance(load(spec_of(tiny("llama"), LLAMA, backend="dense"), "cpu"), DenseModel)
    said = [each.getMessage() for each in caplog.records]
    assert said == [
        "m: paged backend: its layers use the attention interface",
        "m: dense backend: its configuration asks for it",
    ]
    with pytest.raises(ValueError, match="unknown backend 'sparse'"):
        load(spec_of(tiny("llama"), LLAMA, backend="sparse"), "cpu")


def test_linears_are_packed_for_the_processor(tiny: ModelBuilder) -> None:
    model = load(spec_of(tiny("bloom")), "cpu")
    assert isinstance(model, DenseModel)
    layers = [type(each) for each in model.forward.model.modules()]
    assert any(issubclass(each, FastLinear) for each in layers)
    assert nn.Linear not in layers


def test_dummy_weights_need_no_file(tiny: ModelBuilder, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((tiny("bloom") / "config.json").read_bytes())
    assert isinstance(load(spec_of(tmp_path, load_format="dummy"), "cpu"), DenseModel)


def test_code_in_the_directory_runs_only_where_it_is_trusted(
    tiny: ModelBuilder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "x"))
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((tiny("bloom") / name).read_bytes())
    (tmp_path / "own_code.py").write_text(REMOTE, "utf-8")
    text = (tmp_path / "config.json").read_text("utf-8")
    maps = '"auto_map": {"AutoConfig": "own_code.OwnConfig", '
    maps += '"AutoModelForCausalLM": "own_code.OwnModel"}, "model_type": "own_kind"'
    (tmp_path / "config.json").write_text(text.replace('"model_type": "bloom"', maps), "utf-8")
    with pytest.raises(LoadError, match="not a model configuration"):
        load(spec_of(tmp_path), "cpu")
    assert isinstance(load(spec_of(tmp_path, trust_remote_code=True), "cpu"), DenseModel)


@pytest.mark.parametrize(
    ("backend", "reason"), [("auto", "asked for attention"), ("dense", "backend dense")]
)
def test_processes_that_share_a_gpu_run_paged_models_only(
    tiny: ModelBuilder, backend: str, reason: str
) -> None:
    unit = unit_of({"bloom": tiny("bloom")}, ())
    (model,) = unit.models
    spec = replace(unit, models=(replace(model, backend=backend),))
    with pytest.raises(LoadError, match=f"{reason}.*use policy.partition green or none"):
        OwnedMemory(spec)
