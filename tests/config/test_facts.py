"""End tokens and dtype as Hugging Face writes them."""

import json

import pytest

from muxcluster.config import read_facts
from muxcluster.core.errors import LoadError


@pytest.mark.parametrize(
    ("config", "generation", "expected"),
    [
        (2, None, (2,)),
        ([2, 7], None, (2, 7)),
        (None, None, ()),
        (2, {"eos_token_id": [5, 6]}, (5, 6)),
        (2, {"eos_token_id": 0}, (0,)),
        (2, {"temperature": 1.0}, (2,)),
    ],
)
def test_end_tokens(model_directory, config, generation, expected) -> None:
    directory = model_directory("tiny", eos_token_id=config)
    if generation is not None:
        (directory / "generation_config.json").write_text(json.dumps(generation))
    assert read_facts(directory).eos_token_ids == expected


def test_dtype_under_both_names(model_directory) -> None:
    assert read_facts(model_directory("old")).dtype == "bfloat16"
    assert read_facts(model_directory("new", dtype="float16")).dtype == "float16"
    assert read_facts(model_directory("none", torch_dtype=None)).dtype == "float32"


def test_corrupt_files_are_named(model_directory, tmp_path) -> None:
    directory = model_directory("tiny")
    (directory / "generation_config.json").write_text("[]")
    with pytest.raises(LoadError, match=r"generation_config\.json"):
        read_facts(directory)
    with pytest.raises(LoadError, match=r"config\.json: no such file"):
        read_facts(tmp_path)
