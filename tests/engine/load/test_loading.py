"""Weights arrive exactly as Hugging Face loads them; broken files are refused by name."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from muxcluster.core.errors import LoadError
from muxcluster.engine.load.paged_loading import load_model
from tests.engine.conftest import ModelBuilder
from tests.models import model_spec

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "opt", "mixtral")
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"


def load(directory: Path, **fields: object) -> torch.nn.Module:
    return load_model(model_spec(directory, "m", **fields), "cpu")


def copy_of(source: Path, target: Path) -> Path:
    target.mkdir()
    for name in ("config.json", "generation_config.json", SINGLE):
        (target / name).write_bytes((source / name).read_bytes())
    return target


def sharded(source: Path, target: Path) -> Path:
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    model.save_pretrained(target, max_shard_size="400KB")
    assert len(list(target.glob("model-*.safetensors"))) > 2
    return target


def same_state(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    """Parameters and buffers, the non-persistent ones too, bit by bit."""
    states = [
        {**dict(m.named_parameters(remove_duplicate=False)), **dict(m.named_buffers())}
        for m in (one, other)
    ]
    assert states[0].keys() == states[1].keys()
    return all(torch.equal(states[0][name], states[1][name]) for name in states[0])


@pytest.mark.parametrize("family", FAMILIES)
def test_equal_to_the_library_single_and_sharded(
    tiny: ModelBuilder, family: str, tmp_path: Path
) -> None:
    directory = tiny(family)
    expected = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    single = load(directory)
    assert same_state(single, expected)
    assert same_state(load(sharded(directory, tmp_path / "shards")), expected)
    assert not single.training
    assert not any(p.requires_grad for p in single.parameters())


def test_tied_weights_are_one(tiny: ModelBuilder) -> None:
    model = load(tiny("qwen2"))
    assert model.lm_head.weight is model.model.embed_tokens.weight


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_16_bit_weights(tiny: ModelBuilder, dtype: str) -> None:
    directory = tiny("llama")
    model = load(directory, dtype=dtype)
    wanted = getattr(torch, dtype)
    assert {p.dtype for p in model.parameters()} == {wanted}
    stored = load_file(directory / SINGLE)["lm_head.weight"]
    assert torch.equal(model.lm_head.weight, stored.to(wanted))


def test_loading_is_silent(tiny: ModelBuilder, capfd: pytest.CaptureFixture[str]) -> None:
    directory = tiny("mixtral")
    capfd.readouterr()
    load(directory)
    assert capfd.readouterr() == ("", "")


def test_dummy_weights_need_no_file_and_follow_the_seed(tiny: ModelBuilder, tmp_path: Path) -> None:
    directory = copy_of(tiny("qwen2"), tmp_path / "dummy")
    (directory / SINGLE).unlink()
    state = torch.random.get_rng_state()
    one, same, other = (load(directory, load_format="dummy", seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert same_state(one, same)
    assert not same_state(one, other)
    assert 0.018 < one.model.layers[0].mlp.up_proj.weight.std().item() < 0.022


def test_unknown_load_format(tiny: ModelBuilder) -> None:
    with pytest.raises(ValueError, match="load_format 'gguf'"):
        load(tiny("qwen2"), load_format="gguf")


def truncate(directory: Path) -> None:
    data = (directory / SINGLE).read_bytes()
    (directory / SINGLE).write_bytes(data[:-1000])


def truncate_header(directory: Path) -> None:
    data = (directory / SINGLE).read_bytes()
    (directory / SINGLE).write_bytes(data[:50])


def garble(directory: Path) -> None:
    data = bytearray((directory / SINGLE).read_bytes())
    data[8:40] = bytes(32)
    (directory / SINGLE).write_bytes(data)


def empty(directory: Path) -> None:
    (directory / SINGLE).write_bytes(b"")


def remove(directory: Path) -> None:
    (directory / SINGLE).rename(directory / "pytorch_model.bin")


def drop_tensor(directory: Path) -> None:
    tensors = load_file(directory / SINGLE)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, directory / SINGLE, {"format": "pt"})


def reshape_tensor(directory: Path) -> None:
    tensors = load_file(directory / SINGLE)
    tensors["model.norm.weight"] = tensors["model.norm.weight"][:-1].clone()
    save_file(tensors, directory / SINGLE, {"format": "pt"})


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (truncate, "corrupt or incomplete"),
        (truncate_header, "corrupt or incomplete"),
        (garble, "corrupt or incomplete"),
        (empty, "corrupt or incomplete"),
        (remove, "no such file"),
        (drop_tensor, r"lacks tensor model\.layers\.1\.mlp\.up_proj\.weight"),
        (reshape_tensor, r"model\.norm\.weight has shape \(191,\), config.json asks for \(192,\)"),
    ],
)
def test_a_broken_file_is_named(
    tiny: ModelBuilder, tmp_path: Path, damage: Callable[[Path], None], reason: str
) -> None:
    directory = copy_of(tiny("llama"), tmp_path / "broken")
    damage(directory)
    with pytest.raises(LoadError, match=reason) as raised:
        load(directory)
    assert raised.value.path == directory / SINGLE


def test_a_missing_expert_is_refused(tiny: ModelBuilder, tmp_path: Path) -> None:
    """Experts are fused while loading; one that is not there must not go unnoticed."""
    directory = copy_of(tiny("mixtral"), tmp_path / "broken")
    tensors = load_file(directory / SINGLE)
    (name,) = (n for n in tensors if "layers.1" in n and "experts.2.w1" in n)
    del tensors[name]
    save_file(tensors, directory / SINGLE, {"format": "pt"})
    with pytest.raises(LoadError) as raised:
        load(directory)
    assert raised.value.path == directory / SINGLE


def drop_shard(directory: Path, index: dict[str, str]) -> Path:
    shard = directory / index["model.norm.weight"]
    shard.unlink()
    return shard


def truncate_shard(directory: Path, index: dict[str, str]) -> Path:
    shard = directory / index["model.norm.weight"]
    shard.write_bytes(shard.read_bytes()[:-4])
    return shard


def promise(directory: Path, index: dict[str, str]) -> Path:
    index["model.more.weight"] = index["model.norm.weight"]
    (directory / INDEX).write_text(json.dumps({"weight_map": index}))
    return directory / index["model.norm.weight"]


def leave(directory: Path, index: dict[str, str]) -> Path:
    index["model.norm.weight"] = "../elsewhere.safetensors"
    (directory / INDEX).write_text(json.dumps({"weight_map": index}))
    return directory / INDEX


def cut_index(directory: Path, index: dict[str, str]) -> Path:
    (directory / INDEX).write_text(json.dumps({"weight_map": index})[:-5])
    return directory / INDEX


def empty_index(directory: Path, index: dict[str, str]) -> Path:
    (directory / INDEX).write_text("{}")
    return directory / INDEX


@pytest.mark.parametrize(
    "damage", [drop_shard, truncate_shard, promise, leave, cut_index, empty_index]
)
def test_a_broken_shard_is_named(
    tiny: ModelBuilder, tmp_path: Path, damage: Callable[[Path, dict[str, str]], Path]
) -> None:
    directory = sharded(tiny("llama"), tmp_path / "shards")
    index = json.loads((directory / INDEX).read_text())["weight_map"]
    named = damage(directory, index)
    with pytest.raises(LoadError) as raised:
        load(directory)
    assert raised.value.path == named
