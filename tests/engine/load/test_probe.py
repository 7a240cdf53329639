"""Models that a paged cache cannot serve are refused when they load, with the reason."""

from pathlib import Path

import pytest
from transformers import AutoConfig, AutoModelForCausalLM

from muxcluster.core.errors import LoadError
from muxcluster.core.kvshape import KvShape
from muxcluster.core.unitspec import ModelSpec
from muxcluster.engine.load.paged_loading import load_model
from muxcluster.engine.load.probe import probe

SMALL = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
}


def dummy_spec(directory: Path, model_type: str, shape: KvShape, **fields: object) -> ModelSpec:
    AutoConfig.for_model(model_type, **{**SMALL, **fields}).save_pretrained(directory)
    return ModelSpec("m", str(directory), shape, 64, 64, (), load_format="dummy")


@pytest.mark.parametrize(
    ("model_type", "fields", "shape", "reason"),
    [
        (
            "deepseek_v3",
            {"q_lora_rank": 16, "kv_lora_rank": 16, "n_routed_experts": 8, "n_group": 2},
            KvShape(2, 2, 192, 4),
            "layer 0 has keys",
        ),
        ("llama", {}, KvShape(3, 2, 32, 4), r"3 layers asked for attention as layers \[0, 1\]"),
        ("llama", {}, KvShape(2, 1, 32, 4), r"keys \(2, 2, 32\)"),
        ("bloom", {"n_head": 2, "n_layer": 2}, KvShape(2, 2, 32, 4), r"as layers \[\]"),
        ("falcon", {}, KvShape(2, 2, 32, 4), "not on the attention interface"),
    ],
)
def test_refused(
    tmp_path: Path, model_type: str, fields: dict[str, object], shape: KvShape, reason: str
) -> None:
    spec = dummy_spec(tmp_path, model_type, shape, **fields)
    with pytest.raises(LoadError, match=reason) as raised:
        load_model(spec, "cpu")
    assert raised.value.path == tmp_path / "config.json"


def test_accepted_with_the_right_shape(tmp_path: Path) -> None:
    spec = dummy_spec(tmp_path, "llama", KvShape(2, 2, 32, 4))
    model = load_model(spec, "cpu")
    expected = AutoModelForCausalLM.from_config(model.config)
    assert [p.shape for p in model.parameters()] == [p.shape for p in expected.parameters()]


@pytest.mark.parametrize("model_type", ["gpt_oss", "granite_swa", "granitemoe_swa"])
def test_attention_sinks_are_accepted(tmp_path: Path, model_type: str) -> None:
    fields = {"num_local_experts": 2, "num_experts_per_tok": 1, "head_dim": 32}
    spec = dummy_spec(tmp_path, model_type, KvShape(2, 2, 32, 4), **fields)
    calls = probe(load_model(spec, "cpu"), spec, tmp_path / "config.json")
    assert [call.sinks is not None and call.sinks.shape for call in calls] == [(2,), (2,)]
