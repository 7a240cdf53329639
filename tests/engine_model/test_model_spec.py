"""config.json and generation_config.json become a specification, or are refused by name."""

import json
from pathlib import Path

import pytest

from muxcluster.core.errors import LoadError
from muxcluster.core.kvshape import KvShape
from muxcluster.engine.model_spec import model_spec
from tests.engine_model.conftest import ModelBuilder


def edited(source: Path, target: Path, **fields: object) -> Path:
    """A copy of the model's config with `fields` changed; None removes one."""
    config = json.loads((source / "config.json").read_text()) | fields
    target.mkdir()
    kept = {key: value for key, value in config.items() if value is not None}
    (target / "config.json").write_text(json.dumps(kept))
    return target


@pytest.mark.parametrize(
    ("family", "dtype", "shape"),
    [
        ("llama", "float32", KvShape(3, 2, 64, 4)),
        ("mistral", "bfloat16", KvShape(2, 1, 64, 2)),
        ("opt", "float16", KvShape(2, 4, 64, 2)),
        ("mixtral", "float32", KvShape(2, 2, 64, 4)),
    ],
)
def test_shapes(tiny: ModelBuilder, family: str, dtype: str, shape: KvShape) -> None:
    spec = model_spec(tiny(family), "m", dtype=dtype)
    assert spec.shape == shape
    assert (spec.name, spec.path, spec.dtype) == ("m", str(tiny(family)), dtype)
    assert spec.max_model_len == 2048
    assert spec.eos_token_ids == (1,)


def test_overrides(tiny: ModelBuilder) -> None:
    spec = model_spec(tiny("qwen2"), "m", max_seqs=3, max_model_len=77, load_format="dummy")
    assert (spec.max_seqs, spec.max_model_len, spec.load_format) == (3, 77, "dummy")
    assert spec.vocab_size == 576


def test_head_dim_and_kv_heads_may_be_left_to_the_family(
    tiny: ModelBuilder, tmp_path: Path
) -> None:
    directory = edited(
        tiny("qwen2"), tmp_path / "m", head_dim=None, num_key_value_heads=4, hidden_size=512
    )
    assert model_spec(directory, "m").shape == KvShape(2, 4, 128, 4)


@pytest.mark.parametrize(
    ("generation", "eos", "expected"),
    [
        ({"eos_token_id": [7, 9]}, 3, (7, 9)),
        ({"eos_token_id": 7}, 3, (7,)),
        ({}, 3, (3,)),
        (None, [3, 4], (3, 4)),
        (None, None, ()),
    ],
)
def test_end_tokens(
    tiny: ModelBuilder,
    tmp_path: Path,
    generation: dict[str, object] | None,
    eos: object,
    expected: tuple[int, ...],
) -> None:
    directory = edited(tiny("qwen3"), tmp_path / "m", eos_token_id=eos)
    if generation is not None:
        (directory / "generation_config.json").write_text(json.dumps(generation))
    assert model_spec(directory, "m").eos_token_ids == expected


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"model_type": "no_such_model"}, "not a model configuration"),
        ({"model_type": None, "architectures": None}, "not a model configuration"),
        ({"num_hidden_layers": 0}, "num_hidden_layers must be a positive integer"),
        ({"eos_token_id": "end"}, "eos_token_id"),
        ({"layer_types": ["full_attention", "chunked_attention", "full_attention"]}, "chunked"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantised"),
        (
            {
                "model_type": "qwen3_next",
                "layer_types": ["linear_attention", "full_attention", "full_attention"],
            },
            "linear_attention cannot be served paged",
        ),
    ],
)
def test_configs_that_are_refused(
    tiny: ModelBuilder, tmp_path: Path, fields: dict[str, object], reason: str
) -> None:
    directory = edited(tiny("llama"), tmp_path / "m", **fields)
    with pytest.raises(LoadError, match=reason) as raised:
        model_spec(directory, "m")
    assert raised.value.path == directory / "config.json"


@pytest.mark.parametrize("text", ["", "{", "[1]", "\x00\xff"])
@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
def test_files_that_are_no_json_object(
    tiny: ModelBuilder, tmp_path: Path, name: str, text: str
) -> None:
    directory = edited(tiny("llama"), tmp_path / "m")
    (directory / name).write_bytes(text.encode("latin-1"))
    with pytest.raises(LoadError) as raised:
        model_spec(directory, "m")
    assert raised.value.path == directory / name


def test_a_missing_directory_and_a_wrong_dtype(tiny: ModelBuilder, tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="no such file"):
        model_spec(tmp_path / "absent", "m")
    with pytest.raises(ValueError, match="unknown dtype 'int8'"):
        model_spec(tiny("llama"), "m", dtype="int8")


def test_contexts_stay_within_what_the_model_knows(tiny: ModelBuilder, tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="max_model_len 4096 is over the model's 2048"):
        model_spec(tiny("llama"), "m", max_model_len=4096)
    rope = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
    rope["original_max_position_embeddings"] = 512
    directory = edited(tiny("llama"), tmp_path / "m", rope_parameters=rope)
    assert model_spec(directory, "m").max_model_len == 512
