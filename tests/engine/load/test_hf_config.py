"""A config.json that transformers or a paged cache cannot take is refused by name."""

import json
from pathlib import Path

import pytest

from muxcluster.core.errors import LoadError
from muxcluster.engine.load.hf_config import read_config
from tests.engine.conftest import ModelBuilder


def edited(source: Path, target: Path, **fields: object) -> Path:
    """A copy of the model's config with `fields` changed; None removes one."""
    config = json.loads((source / "config.json").read_text()) | fields
    target.mkdir()
    kept = {key: value for key, value in config.items() if value is not None}
    (target / "config.json").write_text(json.dumps(kept))
    return target


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"model_type": "no_such_model"}, "not a model configuration"),
        ({"model_type": None, "architectures": None}, "not a model configuration"),
        ({"layer_types": ["full_attention", "chunked_attention", "full_attention"]}, "chunked"),
        ({"quantization_config": {"quant_method": "hqq"}}, "'hqq' cannot be served"),
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
        read_config(directory)
    assert raised.value.path == directory / "config.json"


@pytest.mark.parametrize("text", ["", "{", "[1]", "\x00\xff"])
def test_a_file_that_is_no_json_object(tiny: ModelBuilder, tmp_path: Path, text: str) -> None:
    directory = edited(tiny("llama"), tmp_path / "m")
    (directory / "config.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(LoadError) as raised:
        read_config(directory)
    assert raised.value.path == directory / "config.json"


def test_a_missing_directory(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="no such file"):
        read_config(tmp_path / "absent")
