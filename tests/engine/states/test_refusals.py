"""What models with states are refused, by name: ranks, adapters, MPS, too few blocks."""

from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
import torch

from muxcluster.config.load import load_config
from muxcluster.config.planning import plan_for
from muxcluster.config.units import unit_specs
from muxcluster.core.errors import ConfigError, LoadError
from muxcluster.core.unitspec import ModelSpec, UnitSpec
from muxcluster.engine.dense.slab import Slab
from muxcluster.engine.gpu.memory.shared import OwnedMemory
from muxcluster.engine.load.division.group import RankGroup
from muxcluster.engine.load.hf_config import NotPaged, read_config
from muxcluster.engine.load.paged_loading import load_model
from muxcluster.engine.states.forward import StatefulForward
from muxcluster.engine.states.layout import layout_of
from muxcluster.engine.steps.runner import load_forward
from tests.engine.conftest import ModelBuilder
from tests.engine.states.units import with_states
from tests.engine.units import spec_of


def spec_for(directory: Path) -> UnitSpec:
    return with_states(spec_of([directory], lane="mixed", partition="none"))


def planned(tmp_path: Path, directory: Path, more: str = "") -> UnitSpec:
    """The unit that a configuration of the one model asks for."""
    file = tmp_path / "muxcluster.yaml"
    model = f"  - {{name: m, path: {directory}, max_model_len: 256{more}}}"
    policy = "policy: {kv_gb: 0.05, num_threads: 1, partition: none}"
    file.write_text("\n".join(["models:", model, policy]), "utf-8")
    config = load_config(file)
    (spec,) = unit_specs(config, plan_for(config))
    return spec


def model_of(spec: UnitSpec) -> ModelSpec:
    (model,) = spec.models
    return model


def test_a_configuration_plans_columns_that_hold_the_states(
    tiny: ModelBuilder, tmp_path: Path
) -> None:
    spec = planned(tmp_path, tiny("qwen3_next"))
    model = model_of(spec)
    assert model.state_columns > 0
    assert not model.prefix_caching
    forward = load_forward(model, spec)
    assert isinstance(forward, StatefulForward)
    half = model.shape.block_tokens(spec.block_bytes) * model.shape.head_dim * 4
    needed = forward.layout.ends(half)[-1]
    assert needed <= 2 * model.state_columns * model.shape.blocks_per_column
    assert layout_of(forward.model).layers[0].recurrent.dtype == torch.float32


def test_the_dense_backend_still_serves_them_where_it_is_asked_for(
    tiny: ModelBuilder, tmp_path: Path
) -> None:
    spec = planned(tmp_path, tiny("bamba"), ", backend: dense")
    assert model_of(spec).state_columns == 0
    assert isinstance(load_forward(model_of(spec), spec), Slab)


def test_too_few_blocks_for_the_states_are_refused(tiny: ModelBuilder) -> None:
    spec = spec_for(tiny("qwen3_next"))
    model = replace(model_of(spec), state_columns=1)
    with pytest.raises(LoadError, match="its states take .* halves of blocks"):
        load_forward(model, spec)


def test_a_model_whose_states_cannot_be_paged_names_the_other_backend(
    tiny: ModelBuilder,
) -> None:
    spec = spec_for(tiny("qwen3_next"))
    model = replace(model_of(spec), path=str(tiny("llama")))
    with pytest.raises(LoadError, match=r"set models\[\].backend to dense"):
        load_forward(model, spec)


def test_types_that_are_not_listed_stay_dense(tiny: ModelBuilder) -> None:
    read_config(tiny("qwen3_next"), has_states=True)
    with pytest.raises(NotPaged, match="linear_attention"):
        read_config(tiny("qwen3_next"))


def test_ranks_adapters_and_mps_are_refused(tiny: ModelBuilder, tmp_path: Path) -> None:
    spec = replace(spec_for(tiny("qwen3_next")), partition="mps")
    with pytest.raises(LoadError, match="partition mps runs no models with states"):
        OwnedMemory(spec)
    with pytest.raises(LoadError, match="not divided over GPUs"):
        load_model(model_of(spec), "cpu", cast(RankGroup, object()))
    adapters = ", adapters: [{name: a, path: somewhere}]"
    with pytest.raises(ConfigError, match="a model with states has no adapters"):
        planned(tmp_path, tiny("qwen3_next"), adapters)
