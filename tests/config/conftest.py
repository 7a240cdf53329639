"""Model directories with just config.json, and files of YAML."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

TINY = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 128,
    "vocab_size": 512,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
    "eos_token_id": 2,
    "torch_dtype": "bfloat16",
}


@pytest.fixture
def model_directory(tmp_path: Path) -> Callable[..., Path]:
    """(name, **entries of config.json) -> directory beside the configuration file."""

    def make(name: str, **entries: object) -> Path:
        path = tmp_path / name
        path.mkdir()
        (path / "config.json").write_text(json.dumps({**TINY, **entries}))
        return path

    return make


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], Path]:
    """YAML text -> the file that holds it."""

    def make(text: str) -> Path:
        path = tmp_path / "muxcluster.yaml"
        path.write_text(text)
        return path

    return make
