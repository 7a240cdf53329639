"""End tokens and dtype as Hugging Face writes them."""

import json

import pytest

from muxcluster.config.facts import read_facts
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
    (directory / "generation_config.json").write_text('{"eos_token_id": "</s>"}')
    with pytest.raises(LoadError, match=r"generation_config\.json: eos_token_id"):
        read_facts(directory)
    with pytest.raises(LoadError, match=r"config\.json: no such file"):
        read_facts(tmp_path)


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ({}, 2048),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, 2048),
        ({"rope_scaling": {"type": "longrope"}, "original_max_position_embeddings": 512}, 512),
        (
            {"rope_parameters": {"rope_type": "longrope", "original_max_position_embeddings": 256}},
            256,
        ),
    ],
)
def test_rotary_kinds_that_depend_on_length_are_cut(model_directory, entries, expected) -> None:
    assert read_facts(model_directory("tiny", **entries)).max_context == expected


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3", "opt", "mixtral"])
def test_transformers_reads_the_same(tmp_path, family) -> None:
    """Oracle: transformers' own configuration classes, defaults filled in."""
    model = pytest.importorskip("muxcluster.demo.models")
    engine = pytest.importorskip("muxcluster.engine.load.hf_config")
    directory = model.build_model(tmp_path / family, family)
    facts, config = read_facts(directory), engine.read_config(directory)
    shape = facts.shape
    heads = config.num_attention_heads
    assert (shape.num_layers, shape.num_kv_heads, shape.head_dim, shape.vocab_size) == (
        config.num_hidden_layers,
        getattr(config, "num_key_value_heads", None) or heads,
        getattr(config, "head_dim", None) or config.hidden_size // heads,
        config.vocab_size,
    )
    assert facts.eos_token_ids == (config.eos_token_id,)
    assert (facts.max_context, facts.dtype) == (config.max_position_embeddings, "float32")


def test_quantised_weights_are_refused_before_anything_starts(model_directory) -> None:
    directory = model_directory("quantised", quantization_config={"quant_method": "fp8"})
    with pytest.raises(LoadError, match="config.json: quantised weights are not supported"):
        read_facts(directory)
