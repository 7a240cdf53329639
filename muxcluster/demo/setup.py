"""The demo's three models and their configuration file, created once and kept."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from muxcluster.demo.models import build_model
from muxcluster.demo.workload import Burst, Planned


@dataclass(frozen=True, slots=True)
class DemoModel:
    """A model of the demo."""

    name: str
    family: str
    fields: Mapping[str, Any]  # of the family's Hugging Face configuration

    def describe(self) -> str:
        layers, heads = self.fields["num_hidden_layers"], self.fields["num_attention_heads"]
        kv_heads = self.fields.get("num_key_value_heads", heads)
        shape = f"{layers} layers, {heads} heads, {kv_heads} KV heads of {self.fields['head_dim']}"
        return f"{self.name}: {self.family}, {shape}"


# In falling order of popularity; three families, layer counts, head counts, two head sizes.
MODELS = (
    DemoModel(
        "tiny-llama",
        "llama",
        MappingProxyType(
            {
                "vocab_size": 2048,
                "hidden_size": 256,
                "intermediate_size": 768,
                "num_hidden_layers": 6,
                "num_attention_heads": 8,
                "num_key_value_heads": 4,
                "head_dim": 64,
            }
        ),
    ),
    DemoModel(
        "tiny-qwen3",
        "qwen3",
        MappingProxyType(
            {
                "vocab_size": 1536,
                "hidden_size": 192,
                "intermediate_size": 512,
                "num_hidden_layers": 4,
                "num_attention_heads": 4,
                "num_key_value_heads": 2,
                "head_dim": 128,
            }
        ),
    ),
    DemoModel(
        "tiny-opt",
        "opt",
        MappingProxyType(
            {
                "vocab_size": 1024,
                "ffn_dim": 512,
                "num_hidden_layers": 3,
                "num_attention_heads": 4,
                "head_dim": 64,
                "word_embed_proj_dim": 256,
            }
        ),
    ),
)

STAMP = "muxcluster-demo.json"


def build_models(directory: Path, seed: int) -> list[Path]:
    """Create a Hugging Face directory for each of `MODELS`; existing ones of this seed are kept."""
    return [_build(directory / model.name, model, seed + i) for i, model in enumerate(MODELS)]


def _build(path: Path, model: DemoModel, seed: int) -> Path:
    made_of = json.dumps({"family": model.family, "seed": seed, **model.fields})
    stamp = path / STAMP
    if not stamp.is_file() or stamp.read_text() != made_of:
        build_model(path, model.family, seed=seed, **model.fields)
        stamp.write_text(made_of)
    return path


@dataclass(frozen=True, slots=True)
class Expected:
    """Expected load of a model, for the plan: requests/s, mean tokens."""

    rate: float
    prompt_tokens: float
    output_tokens: float


def expected_loads(burst: Burst) -> list[Expected]:
    """Return the loads of `MODELS` in `burst`; a model without requests counts as asked once."""
    span_s = max(burst.requests[-1].at_s, 1.0)
    return [
        _load([request for request in burst.requests if request.model == model.name], span_s)
        for model in MODELS
    ]


def _load(requests: list[Planned], span_s: float) -> Expected:
    count = max(1, len(requests))
    return Expected(
        count / span_s,
        max(1.0, sum(request.prompt_tokens for request in requests) / count),
        max(1.0, sum(request.output_tokens for request in requests) / count),
    )


MAX_MODEL_LEN = 384
# The pool is so small that a burst fills it, so that quotas move. Cores are always shared, for the
# timeline: whether sharing pays on a CPU is not part of the demo.
POLICY = MappingProxyType({"kv_gb": 0.016, "quota_period_s": 2.0, "sharing": "always"})


def write_config(directory: Path, paths: list[Path], expected: list[Expected]) -> Path:
    """Write `muxcluster.yaml` into `directory`; returns its path."""
    models = [
        {
            "name": model.name,
            "path": str(path.resolve()),
            "rate": round(load.rate, 3),
            "prompt_tokens": round(load.prompt_tokens, 1),
            "output_tokens": round(load.output_tokens, 1),
            "max_model_len": MAX_MODEL_LEN,
        }
        for model, path, load in zip(MODELS, paths, expected, strict=True)
    ]
    file = directory / "muxcluster.yaml"
    config = {"models": models, "cluster": {"nodes": "auto"}, "policy": dict(POLICY)}
    file.write_text(yaml.safe_dump(config, sort_keys=False))
    return file
