"""Adapters in PEFT's format: what is read of them, and what is refused by its name."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors.numpy import save_file

from muxcluster.core.errors import LoadError
from muxcluster.core.inputs.adapters.files import read_adapter

MODULE = "model.layers.0.self_attn.q_proj"
CONFIG = {"peft_type": "LORA", "r": 3, "lora_alpha": 6, "target_modules": ["q_proj"]}

Tensors = dict[str, NDArray[Any]]


def tensors(module: str = MODULE, rank: int = 3) -> Tensors:
    start = f"base_model.model.{module}"
    return {
        f"{start}.lora_A.weight": np.ones((rank, 8), dtype=np.float32),
        f"{start}.lora_B.weight": np.ones((5, rank), dtype=np.float16),
    }


def write(directory: Path, stored: Tensors | None = None, **config: object) -> Path:
    directory.mkdir(exist_ok=True)
    (directory / "adapter_config.json").write_text(json.dumps({**CONFIG, **config}))
    save_file(tensors() if stored is None else stored, directory / "adapter_model.safetensors")
    return directory


def test_what_is_adapted(tmp_path: Path) -> None:
    other = "model.layers.1.mlp.down_proj"
    stored = {**tensors(), **tensors(other, rank=2)}
    directory = write(tmp_path, stored, rank_pattern={"down_proj": 2}, alpha_pattern={other: 7.0})
    found = read_adapter(directory)
    query, down = found.modules
    assert (query.module, query.rank, query.scale) == (MODULE, 3, 2.0)
    assert (query.in_features, query.out_features) == (8, 5)
    assert (down.module, down.rank, down.scale) == (other, 2, 3.5)
    assert found.num_elements == (3 + 2) * (8 + 5)


def test_a_tuner_of_older_versions_is_part_of_the_name(tmp_path: Path) -> None:
    stored = {name.replace(".weight", ".default.weight"): t for name, t in tensors().items()}
    assert read_adapter(write(tmp_path, stored)).modules[0].module == MODULE


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"peft_type": "IA3"}, "peft_type is 'IA3': only LORA is supported"),
        ({"bias": "all"}, "bias is 'all': adapted biases are not supported"),
        ({"use_dora": True}, "'use_dora' is True, which is not supported"),
        ({"lora_bias": True}, "'lora_bias' is True, which is not supported"),
        ({"modules_to_save": ["lm_head"]}, "'modules_to_save' is ['lm_head']"),
        ({"trainable_token_indices": [1]}, "'trainable_token_indices' is [1]"),
        ({"target_parameters": ["experts"]}, "'target_parameters' is ['experts']"),
        ({"layer_replication": [[0, 2]]}, "'layer_replication' is [[0, 2]]"),
        ({"something_new": {"a": 1}}, "'something_new' is {'a': 1}"),
        ({"init_lora_weights": "pissa_niter_4"}, "changes the base model's weights"),
        ({"r": 0}, "r is 0, expected a positive rank"),
        ({"r": True}, "r is True"),
        ({"r": None}, "r is None"),
        ({"lora_alpha": "16"}, "lora_alpha is '16', expected a number"),
        ({"lora_alpha": float("nan")}, "lora_alpha is nan"),
        ({"rank_pattern": [4]}, "rank_pattern is [4], expected an object"),
        ({"rank_pattern": {"q_proj": 1.5}}, "rank_pattern is 1.5"),
        ({"alpha_pattern": {"(": 4}}, "alpha_pattern: '(' is no regular expression"),
    ],
)
def test_a_config_that_cannot_be_honoured(
    tmp_path: Path, config: dict[str, object], message: str
) -> None:
    with pytest.raises(LoadError) as error:
        read_adapter(write(tmp_path, **config))
    assert error.value.path == tmp_path / "adapter_config.json"
    assert message in str(error.value)


@pytest.mark.parametrize(
    "config",
    [
        {"use_dora": False, "modules_to_save": None, "megatron_config": None, "eva_config": None},
        {"init_lora_weights": "gaussian", "peft_version": "0.18.0", "lora_dropout": 0.1},
        {"init_lora_weights": True, "inference_mode": True, "fan_in_fan_out": True},
    ],
)
def test_a_config_that_changes_nothing(tmp_path: Path, config: dict[str, object]) -> None:
    assert len(read_adapter(write(tmp_path, **config)).modules) == 1


START = f"base_model.model.{MODULE}"


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda t: t.clear(), "holds no tensors"),
        (lambda t: t.pop(f"{START}.lora_A.weight"), "lora_B.weight has no lora_A beside it"),
        (lambda t: t.pop(f"{START}.lora_B.weight"), "lora_A.weight has no lora_B beside it"),
        (
            lambda t: t.update(tensors(rank=4)),
            "lora_A.weight has rank 4, adapter_config.json asks for 3",
        ),
        (
            lambda t: t.update({f"{START}.lora_B.weight": np.ones((5, 2), np.float32)}),
            "lora_B.weight has rank 2",
        ),
        (
            lambda t: t.update({f"{START}.lora_A.weight": np.ones((3, 8), np.int32)}),
            "lora_A.weight is of 'I32', expected a type of floats",
        ),
        (
            lambda t: t.update({f"{START}.lora_A.weight": np.ones(24, np.float32)}),
            "lora_A.weight has shape [24], expected a matrix",
        ),
        (
            lambda t: t.update({f"{START}.lora_magnitude_vector": np.ones(5, np.float32)}),
            "DoRA (use_dora) is not supported",
        ),
        (
            lambda t: t.update({"base_model.model.model.embed.lora_embedding_A": np.ones((3, 9))}),
            "embeddings cannot be adapted",
        ),
        (
            lambda t: t.update({"base_model.model.lm_head.weight": np.ones((9, 8))}),
            "no whole weights (modules_to_save)",
        ),
    ],
)
def test_tensors_that_are_no_adapter(
    tmp_path: Path, edit: Callable[[Tensors], object], message: str
) -> None:
    stored = tensors()
    edit(stored)
    with pytest.raises(LoadError) as error:
        read_adapter(write(tmp_path, stored))
    assert error.value.path == tmp_path / "adapter_model.safetensors"
    assert message in str(error.value)


def test_missing_files(tmp_path: Path) -> None:
    directory = write(tmp_path)
    (directory / "adapter_model.safetensors").unlink()
    with pytest.raises(LoadError, match="no such file: adapters must be in safetensors"):
        read_adapter(directory)
    (directory / "adapter_config.json").unlink()
    with pytest.raises(LoadError, match="no such file"):
        read_adapter(directory)


@given(seed=st.integers(0, 2**32), cut=st.booleans())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_broken_file_is_a_load_error_and_nothing_else(
    tmp_path: Path, seed: int, cut: bool
) -> None:
    rng = random.Random(seed)
    file = write(tmp_path) / "adapter_model.safetensors"
    data = bytearray(file.read_bytes())
    if cut:
        del data[rng.randrange(len(data)) :]
    else:
        for _ in range(rng.randint(1, 8)):
            data[rng.randrange(min(len(data), 200))] = rng.randrange(256)
    file.write_bytes(data)
    try:
        read_adapter(tmp_path)
    except LoadError as error:
        assert error.path == file
        assert "\n" not in str(error)
    else:
        assert not cut
