"""What a rank loads is its part of the model, no more, and the parts make the whole."""

import json
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM

from muxcluster.config.facts import read_facts
from muxcluster.core.errors import LoadError
from muxcluster.core.kvshape import KvShape
from muxcluster.core.unitspec import ModelSpec
from muxcluster.engine.load import tensor_loading
from muxcluster.engine.load.division import plans
from muxcluster.engine.load.division.division import bounds
from muxcluster.engine.load.division.group import RankGroup
from muxcluster.engine.load.division.stored_weights import WeightFiles
from muxcluster.engine.load.paged_loading import load_model
from muxcluster.placement.shapes.division import part_of
from muxcluster.placement.shapes.division import refusal as placement_refusal
from tests.engine.parallel.conftest import ModelBuilder
from tests.engine.parallel.ranks import on_ranks, rank_model
from tests.models import model_spec

FAMILIES: Mapping[str, Mapping[str, object]] = {
    "llama": {},
    "qwen2": {"tie_word_embeddings": False},
    "qwen2-tied": {},
    "qwen3": {},
    "llama-ragged": {"vocab_size": 515, "tie_word_embeddings": True},
    "gemma2": {},
    "mistral": {},
    "opt": {},
    "mixtral": {},
    "qwen2_moe": {"vocab_size": 513},
    "qwen3_moe": {},
    "gpt_oss": {},
}
LOADABLE = pytest.mark.parametrize("name", FAMILIES)


@pytest.fixture(autouse=True)
def one_skeleton_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks are processes: these threads share the generator that some weights start from."""
    lock, make = threading.Lock(), tensor_loading.skeleton

    def locked(*asked: Any) -> nn.Module:
        with lock:
            return make(*asked)

    monkeypatch.setattr(tensor_loading, "skeleton", locked)


def built(tiny: ModelBuilder, name: str) -> Path:
    return tiny(name, name.split("-")[0], **FAMILIES[name])


def loaded(spec: ModelSpec, size: int = 2) -> list[nn.Module]:
    part = rank_model(spec, size)
    return on_ranks(size, lambda group: load_model(part, "cpu", group))


def num_bytes(model: nn.Module) -> int:
    """Of memory that parameters keep alive, whatever they show of it."""
    return sum(each.untyped_storage().nbytes() for each in model.parameters())


def plain_name(name: str) -> str:
    """Names in a divided model have one step more where a layer wraps its part."""
    return name.replace(".part.", ".")


def joined(name: str, whole: Tensor, parts: list[Tensor]) -> Tensor:
    """The parts put together along the axis along which they are smaller than `whole`."""
    if name.endswith("down_proj_bias"):  # the first rank alone adds it
        assert not any(part.any() for part in parts[1:])
        return parts[0]
    if name.endswith("gate_up_proj") and parts[0].shape[1] < whole.shape[1]:
        pairs = zip(*(part.chunk(2, dim=1) for part in parts), strict=True)
        return torch.cat([each for half in pairs for each in half], dim=1)
    axes = [axis for axis in range(whole.ndim) if parts[0].shape[axis] < whole.shape[axis]]
    if not axes:
        assert all(torch.equal(part, parts[0]) for part in parts)
        return parts[0]
    return torch.cat(parts, dim=axes[0])


@LOADABLE
@pytest.mark.parametrize("load_format", ["auto", "dummy"])
def test_the_parts_of_all_ranks_make_the_whole(
    tiny: ModelBuilder, name: str, load_format: str
) -> None:
    spec = model_spec(built(tiny, name), "m", load_format=load_format)
    whole = load_model(spec, "cpu")
    parts = [
        {plain_name(name): each for name, each in part.named_parameters(remove_duplicate=False)}
        for part in loaded(spec)
    ]
    expected = dict(whole.named_parameters(remove_duplicate=False))
    assert parts[0].keys() == expected.keys()
    for each, tensor in expected.items():
        assert torch.equal(joined(each, tensor, [part[each] for part in parts]), tensor), each


@LOADABLE
def test_two_ranks_compute_what_hugging_face_does(tiny: ModelBuilder, name: str) -> None:
    """Logits of the models alone, without our cache: attention is the library's own."""
    directory = built(tiny, name)
    whole = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    tokens = torch.randint(0, whole.config.vocab_size, (1, 20))
    part = rank_model(model_spec(directory, "m"))

    def forward(group: RankGroup) -> Tensor:
        model = load_model(part, "cpu", group)
        model.set_attn_implementation("eager")
        logits: Tensor = model(input_ids=tokens, use_cache=False).logits
        return logits

    whole.set_attn_implementation("eager")
    with torch.inference_mode():
        expected = whole(input_ids=tokens, use_cache=False).logits
    first, second = on_ranks(2, forward)
    torch.testing.assert_close(first, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))
    assert torch.equal(first, second)


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen2-tied", "qwen3", "llama-ragged"])
def test_a_rank_holds_half_of_the_weights(tiny: ModelBuilder, name: str) -> None:
    spec = model_spec(built(tiny, name), "m")
    whole = num_bytes(load_model(spec, "cpu"))
    for part in loaded(spec):
        assert 0.5 * whole <= num_bytes(part) + 4 * 1024 and num_bytes(part) < 0.51 * whole


WIDER: Mapping[str, Mapping[str, object]] = {
    "llama-8-heads": {"num_attention_heads": 8, "vocab_size": 515},
    "llama-3-kv-heads": {"num_attention_heads": 12, "num_key_value_heads": 3},
    "llama-383": {"num_attention_heads": 8, "intermediate_size": 383},
    "mistral": {},
    "qwen2-tied": {},
    "opt-256": {"word_embed_proj_dim": 256},
    "mixtral-200": {"intermediate_size": 200},
    "qwen2_moe": {"vocab_size": 513},
    "qwen3_moe": {},
}
"""Replicated KV heads, experts, positions that all have, and parts of different lengths."""


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("name", WIDER)
def test_ranks_hold_what_the_planner_counts(tiny: ModelBuilder, name: str, size: int) -> None:
    directory = tiny(name, name.split("-")[0], **WIDER[name])
    matrices = [
        sum(each.nbytes for each in part.parameters() if each.ndim > 1)
        for part in loaded(model_spec(directory, "m"), size)
    ]
    counted = 4 * part_of(read_facts(directory).shape, size).num_params
    assert max(matrices) == matrices[0] == pytest.approx(counted, rel=2e-3)


@pytest.mark.parametrize("name", ["llama", "mistral", "mixtral"])
def test_no_more_is_read_than_a_rank_holds(
    tiny: ModelBuilder, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    spec = model_spec(built(tiny, name), "m")
    read: list[int] = []
    original = WeightFiles._read

    def counted(self: WeightFiles, *asked: Any) -> Tensor:
        part = original(self, *asked)
        read.append(part.numel() * part.element_size())
        return part

    monkeypatch.setattr(WeightFiles, "_read", counted)
    held = sum(num_bytes(part) for part in loaded(spec))
    assert sum(read) == held


def test_a_tied_layer_is_one_tensor(tiny: ModelBuilder) -> None:
    for part in loaded(model_spec(built(tiny, "qwen2-tied"), "m")):
        assert part.lm_head.part.weight is part.model.embed_tokens.part.weight


def test_files_that_hold_both_ends_of_a_tie(tiny: ModelBuilder, tmp_path: Path) -> None:
    """Equal tensors are one; where they differ the configuration is wrong, as the library says."""
    directory = copy_of(built(tiny, "qwen2-tied"), tmp_path / "both")
    for factor in (1.0, 2.0):
        tensors = load_file(directory / "model.safetensors")
        head = factor * tensors["model.embed_tokens.weight"]
        save_file({**tensors, "lm_head.weight": head}, directory / "model.safetensors")
        parts = loaded(model_spec(directory, "m"))
        stored = torch.cat([part.lm_head.part.weight for part in parts])
        assert torch.equal(stored, head)
        shared = [p.lm_head.part.weight is p.model.embed_tokens.part.weight for p in parts]
        assert shared == [factor == 1.0] * 2


def test_shards_and_names_without_the_models_prefix(tiny: ModelBuilder, tmp_path: Path) -> None:
    directory = copy_of(built(tiny, "llama"), tmp_path / "bare")
    tensors = load_file(directory / "model.safetensors")
    (directory / "model.safetensors").unlink()
    shards: dict[str, dict[str, Tensor]] = {}
    for i, (name, tensor) in enumerate(tensors.items()):
        shards.setdefault(f"part-{i % 3}.safetensors", {})[name.removeprefix("model.")] = tensor
    for file, content in shards.items():
        save_file(content, directory / file)
    weight_map = {name: file for file, content in shards.items() for name in content}
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    first, second = loaded(model_spec(directory, "m"))
    stored = tensors["model.layers.1.mlp.down_proj.weight"]
    names = "model.layers.1.mlp.down_proj.part.weight"
    parts = [part.get_parameter(names) for part in (first, second)]
    assert torch.equal(torch.cat(parts, dim=1), stored)


def copy_of(source: Path, target: Path) -> Path:
    target.mkdir()
    for name in ("config.json", "model.safetensors"):
        (target / name).write_bytes((source / name).read_bytes())
    return target


def with_config(source: Path, target: Path, **entries: object) -> Path:
    copy_of(source, target)
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**config, **entries}))
    return target


def refusal(spec: ModelSpec, size: int = 2) -> str:
    with pytest.raises(LoadError) as caught:
        on_ranks(size, lambda group: load_model(spec, "cpu", group))
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("fields", "size", "says"),
    [
        ({"num_attention_heads": 6}, 4, "6 heads cannot be divided among them"),
        ({"intermediate_size": 3}, 4, "gate_proj has 3 outputs, which leaves a rank without any"),
    ],
)
def test_a_model_that_cannot_be_divided(
    tiny: ModelBuilder, tmp_path: Path, fields: dict[str, object], size: int, says: str
) -> None:
    whole = tiny("llama-8", "llama", num_attention_heads=8, num_key_value_heads=2)
    directory = with_config(whole, tmp_path / "odd", **fields)
    message = refusal(model_spec(directory, "m", load_format="dummy"), size)
    assert message.startswith(f"{directory}/config.json: cannot run on {size} GPUs: ")
    assert says in message
    shape = read_facts(directory).shape
    assert placement_refusal(shape, size), "the planner would have planned it"


def test_a_family_without_a_plan(tiny: ModelBuilder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "OWN_PLANS", {})
    message = refusal(model_spec(tiny("opt", "opt"), "m"))
    assert "transformers has no tensor-parallel plan for 'opt', nor have we" in message


def test_a_plan_that_keeps_heads_together_is_refused(tmp_path: Path) -> None:
    """OLMo 2's norms want the queries of all heads, so every rank would hold all KV heads."""
    config = AutoConfig.for_model(
        "olmo2", hidden_size=64, num_attention_heads=4, num_key_value_heads=2, vocab_size=64,
        intermediate_size=64, num_hidden_layers=2, pad_token_id=0,
    )  # fmt: skip
    config.save_pretrained(tmp_path)
    spec = ModelSpec("m", str(tmp_path), KvShape(2, 1, 16, 4), 64, 64, (), load_format="dummy")
    assert "q_proj (Linear) divided as 'colwise_gather_output', which is not" in refusal(spec)


def test_a_missing_tensor_and_a_wrong_shape_are_named(tiny: ModelBuilder, tmp_path: Path) -> None:
    spec = rank_model(model_spec(built(tiny, "llama"), "m"))
    for change, says in (("drop", "lacks tensor"), ("cut", "has shape (191,)")):
        directory = copy_of(built(tiny, "llama"), tmp_path / change)
        tensors = load_file(directory / "model.safetensors")
        norm = tensors.pop("model.norm.weight")
        kept = tensors if change == "drop" else {**tensors, "model.norm.weight": norm[:-1].clone()}
        save_file(kept, directory / "model.safetensors")
        message = refusal(replace(spec, path=str(directory)))
        assert message.startswith(f"{directory}/model.safetensors: ")
        assert says in message


@pytest.mark.parametrize(("length", "size"), [(8, 2), (9, 2), (13, 4), (9, 4), (3, 4)])
def test_parts_cover_all_rows_once(length: int, size: int) -> None:
    parts = on_ranks(size, lambda group: bounds(length, group))
    covered = [row for start, end in parts for row in range(start, end)]
    assert covered == list(range(length))
