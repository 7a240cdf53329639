"""End tokens and dtype as Hugging Face writes them."""

import json
from dataclasses import replace

import pytest

from muxcluster.config.facts import read_facts
from muxcluster.core.errors import LoadError
from muxcluster.placement.shapes.weight_format import WeightFormat


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


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ({"quant_method": "fp8"}, WeightFormat("fp8", 128)),
        ({"quant_method": "fp8", "weight_block_size": None}, WeightFormat("fp8")),
        ({"quant_method": "awq", "bits": 4, "group_size": 64}, WeightFormat("int4", 64, True)),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, WeightFormat("int8")),
        ({"quant_method": "gptq", "bits": 4, "sym": False}, WeightFormat("int4", 128, True)),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {
                    "group_0": {
                        "weights": {"num_bits": 8, "type": "int", "strategy": "channel"},
                        "input_activations": {"num_bits": 8, "type": "int", "dynamic": True},
                    }
                },
            },
            WeightFormat("int8", rounds_inputs=True),
        ),
    ],
)
def test_quantised_weights_are_known_by_config_json(
    model_directory, found: dict[str, object], expected: WeightFormat
) -> None:
    facts = read_facts(model_directory("quantised", quantization_config=found))
    assert facts.shape.weights == expected
    dense = replace(facts.shape, weights=None)
    assert dense.weight_bytes(2) == 2 * dense.num_params
    assert facts.shape.weight_bytes(2) < dense.weight_bytes(2)


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ({"quant_method": "bitsandbytes"}, "'bitsandbytes' cannot be served"),
        ({"bits": 4}, "quantised by None"),
        ({"quant_method": "gptq"}, "GPTQ weights of None bits"),
        ({"quant_method": "gptq", "bits": 4, "group_size": True}, "group_size is True"),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"a": {"weights": {"num_bits": [4], "type": {}}}},
            },
            "config_groups.a: ",
        ),
        ([], "expected an object"),
        ({"quant_method": "awq", "bits": 3}, "AWQ weights of 3 bits"),
        ({"quant_method": "awq", "bits": 4, "version": "exllama"}, "version 'exllama'"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 0}, "group_size is 0"),
        ({"quant_method": "fp8", "weight_block_size": [0, 1]}, "size of blocks"),
        ({"quant_method": "compressed-tensors"}, "no config_groups"),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "float"}}},
            },
            "config_groups.group_0: 4-bit float weights",
        ),
    ],
)
def test_quantised_weights_that_cannot_be_served_are_refused_before_anything_starts(
    model_directory, found: object, message: str
) -> None:
    directory = model_directory("quantised", quantization_config=found)
    with pytest.raises(LoadError, match=f"config.json: .*{message}"):
        read_facts(directory)
