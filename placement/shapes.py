"""A model's shape and the numbers that follow from it: parameters, KV bytes, FLOPs."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_UNGATED = frozenset({"opt", "gpt2", "gpt_neo", "gpt_neox", "gptj", "bloom", "falcon", "phi"})
_TIED = frozenset({"opt", "gpt2", "gpt_neo", "bloom", "falcon", "gemma", "gemma2", "gemma3_text"})
_LEARNED_POSITIONS = frozenset({"opt", "gpt2", "gpt_neo"})
_SPELLINGS: Mapping[str, tuple[str, ...]] = {
    "num_layers": ("num_hidden_layers", "n_layer", "num_layers"),
    "hidden_size": ("hidden_size", "n_embd", "d_model"),
    "num_heads": ("num_attention_heads", "n_head", "num_heads"),
    "vocab_size": ("vocab_size",),
    "max_position": ("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx"),
    "intermediate_size": ("intermediate_size", "ffn_dim", "n_inner"),
    "num_experts": ("num_local_experts", "num_experts", "n_routed_experts"),
    "experts_per_token": ("num_experts_per_tok", "num_experts_per_token"),
}


class ShapeError(ValueError):
    """A config.json does not describe a causal language model; the message names the key."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of one decoder-only transformer.

    intermediate_size: of one expert where there are several. num_experts: 1 for a dense model.
    gated_mlp: three MLP matrices, not two. max_position: longest context.
    """

    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_position: int
    gated_mlp: bool = True
    tied_embeddings: bool = False
    learned_positions: bool = False
    num_experts: int = 1
    experts_per_token: int = 1
    shared_intermediate_size: int = 0

    @classmethod
    def from_hf_config(cls, source: Path | str | Mapping[str, Any]) -> "ModelShape":
        """From a config.json: its content, the file, or the directory that holds it.

        Raises OSError or ShapeError.
        """
        config = source if isinstance(source, Mapping) else _read(Path(source))
        config = config.get("text_config") or config
        kind = str(config.get("model_type", ""))
        hidden, heads = _number(config, "hidden_size"), _number(config, "num_heads")
        experts = _number(config, "num_experts", 1)
        return cls(
            num_layers=_number(config, "num_layers"),
            hidden_size=hidden,
            num_heads=heads,
            num_kv_heads=_kv_heads(config, kind, heads),
            head_dim=config.get("head_dim") or hidden // heads,
            intermediate_size=_intermediate(config, experts, hidden),
            vocab_size=_number(config, "vocab_size"),
            max_position=_number(config, "max_position", 2048),
            gated_mlp=kind not in _UNGATED,
            tied_embeddings=bool(config.get("tie_word_embeddings", kind in _TIED)),
            learned_positions=kind in _LEARNED_POSITIONS,
            num_experts=experts,
            experts_per_token=_number(config, "experts_per_token", 1) if experts > 1 else 1,
            shared_intermediate_size=config.get("shared_expert_intermediate_size") or 0,
        )

    @property
    def attention_params(self) -> int:
        """Weights of one layer's query, key, value and output matrices."""
        return 2 * self.hidden_size * self.head_dim * (self.num_heads + self.num_kv_heads)

    @property
    def expert_params(self) -> int:
        """Weights of one layer's MLP, or of one of its experts."""
        return (3 if self.gated_mlp else 2) * self.hidden_size * self.intermediate_size

    @property
    def embedding_params(self) -> int:
        """Weights of the token (and learned position) embeddings."""
        positions = self.max_position if self.learned_positions else 0
        return (self.vocab_size + positions) * self.hidden_size

    @property
    def num_params(self) -> int:
        """Weights of all matrices (biases and norms, below 0.1 %, left out)."""
        head = 0 if self.tied_embeddings else self.vocab_size * self.hidden_size
        layer = self._layer_params(self.num_experts)
        return self.embedding_params + head + self.num_layers * layer

    @property
    def active_params(self) -> int:
        """Weights that one token is multiplied with, the output head included."""
        layers = self.num_layers * self._layer_params(self.experts_per_token)
        return layers + self.vocab_size * self.hidden_size

    def touched_params(self, num_tokens: float) -> float:
        """Weights read for a batch of `num_tokens`: of the experts, those that some token chose."""
        miss = (1 - self.experts_per_token / self.num_experts) ** num_tokens
        experts = self.num_experts * (1 - miss) if self.num_experts > 1 else 1.0
        layers = self.num_layers * self._layer_params(experts)
        return layers + self.vocab_size * self.hidden_size

    def kv_bytes_per_token(self, itemsize: int) -> int:
        """Keys and values of one token over all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * itemsize

    def flops_per_token(self, context: float) -> float:
        """FLOPs of one token that attends to `context` tokens."""
        attention = 4 * self.num_layers * self.num_heads * self.head_dim * context
        return 2 * self.active_params + attention

    def _layer_params(self, experts: float) -> int:
        router = self.hidden_size * self.num_experts if self.num_experts > 1 else 0
        shared = 3 * self.hidden_size * self.shared_intermediate_size
        return int(self.attention_params + router + shared + experts * self.expert_params)


def _read(path: Path) -> Mapping[str, Any]:
    file = path / "config.json" if path.is_dir() else path
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ShapeError(f"not JSON: {error}") from error
    if not isinstance(config, dict):
        raise ShapeError("expected a JSON object")
    return config


def _number(config: Mapping[str, Any], name: str, default: int | None = None) -> int:
    """The positive integer called `name` under any spelling."""
    for key in _SPELLINGS[name]:
        value = config.get(key)
        if value is None:
            continue
        if not isinstance(value, int) or value < 1:
            raise ShapeError(f"{key} is {value!r}, expected a positive integer")
        return value
    if default is None:
        raise ShapeError(f"{_SPELLINGS[name][0]} is missing")
    return default


def _kv_heads(config: Mapping[str, Any], kind: str, heads: int) -> int:
    if kind == "falcon" and not config.get("new_decoder_architecture"):
        return 1 if config.get("multi_query", True) else heads
    value = config.get("num_key_value_heads") or config.get("num_kv_heads") or heads
    if not isinstance(value, int) or value < 1 or heads % value:
        raise ShapeError(f"num_key_value_heads is {value!r}, expected a divisor of {heads}")
    return value


def _intermediate(config: Mapping[str, Any], experts: int, hidden: int) -> int:
    if experts > 1 and isinstance(config.get("moe_intermediate_size"), int):
        return int(config["moe_intermediate_size"])
    return _number(config, "intermediate_size", 4 * hidden)
