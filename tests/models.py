"""Specifications of models on disk, as `serve` makes them of a configuration."""

import json
from pathlib import Path
from typing import Any

from muxcluster.config.facts import read_facts
from muxcluster.core.kvshape import KvShape, kv_format
from muxcluster.core.unitspec import ModelSpec

_ITEMSIZE = {"float32": 4, "bfloat16": 2, "float16": 2}


def model_spec(directory: Path, name: str, **overrides: Any) -> ModelSpec:
    """The specification of the model in `directory`; overrides: fields of ModelSpec."""
    facts = read_facts(directory)
    shape, itemsize = facts.shape, _ITEMSIZE[overrides.get("dtype", "float32")]
    form = kv_format(overrides.get("kv_dtype", "auto"), itemsize)
    sizes = (shape.num_attention_layers, shape.num_kv_heads, shape.head_dim)
    found = {
        "shape": KvShape(*sizes, form.itemsize, form.scale_bytes),
        "vocab_size": shape.vocab_size,
        "max_model_len": facts.max_context,
        "eos_token_ids": facts.eos_token_ids,
        "window": shape.window,
        "window_layers": shape.window_layers,
    }
    return ModelSpec(name=name, path=str(directory), **{**found, **overrides})


def tiny_config(**more: Any) -> str:
    """A config.json of a tiny Llama; more: keys that it has too."""
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "vocab_size": 99,
        "num_attention_heads": 4,
        "intermediate_size": 99,
        "max_position_embeddings": 512,
    }
    return json.dumps({**config, **more})


def as_embedder(directory: Path, *, pooling: str = "lasttoken", normalises: bool = True) -> Path:
    """Make the model in `directory` one of sentence-transformers: write its files."""
    kinds = ["Transformer", "Pooling", *(["Normalize"] if normalises else [])]
    modules = [
        {
            "idx": index,
            "name": str(index),
            "path": f"{index}_{kind}" if index else "",
            "type": f"sentence_transformers.models.{kind}",
        }
        for index, kind in enumerate(kinds)
    ]
    (directory / "modules.json").write_text(json.dumps(modules))
    (directory / "1_Pooling").mkdir()
    names = ("cls_token", "mean_tokens", "max_tokens", "lasttoken")
    config = {f"pooling_mode_{name}": name == pooling for name in names}
    (directory / "1_Pooling" / "config.json").write_text(json.dumps(config))
    return directory
