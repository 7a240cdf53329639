"""Runs random tokens through a loaded model to check its logits.

They must be finite, and a rebuilt model must give those of the model that it was made of.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from muxcluster.core.errors import LoadError
from muxcluster.core.unitspec import ModelSpec
from muxcluster.engine.forward.attention import LayerCall
from muxcluster.engine.forward.latents import expands_otherwise, value_width
from muxcluster.engine.forward.paged_forward import Forward, TokenForward
from muxcluster.engine.load.hf_config import NotPaged
from muxcluster.engine.states.mixers import Mix
from muxcluster.kernels.attention.prompt_attention import attend_whole

_MODELS = frozenset(
    {"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"}
)

# kinds of rotary embedding whose angles depend on the position alone
_ROPE_TYPES = frozenset({"default", "linear", "llama3", "yarn"})

# most difference of a logit, relative to the largest logit
_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.1, torch.float16: 0.02}

_ROUNDED_TOLERANCE = 0.2  # 0.06 was seen with random weights; another model differs by 1 and more

NUM_TOKENS = 9

Foreign = Any  # a module of transformers, with attributes that mypy does not know


class NotFusible(Exception):
    """The model cannot be rebuilt; the message says why."""


class NotTheSame(NotFusible):
    """The rebuilt model computes something else."""


@dataclass(slots=True)
class WholeAttention:
    """Attention of one sequence to itself; records what the layers asked for."""

    calls: list[LayerCall] = field(default_factory=list)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: LayerCall) -> Tensor:
        self.calls.append(call)
        if call.sinks is not None:
            return attend_whole(query, key, value, call.scale, None, call.sinks)
        attended = scaled_dot_product_attention(
            query.transpose(0, 1),
            key.transpose(0, 1),
            value.transpose(0, 1),
            is_causal=True,
            scale=call.scale,
            enable_gqa=True,
        )
        return attended.transpose(0, 1)

    def attend_latent(self, query: Tensor, latent: Tensor, call: LayerCall) -> Tensor:
        key = latent.unsqueeze(1)
        return self.attend(query, key, key[..., : call.value_width], call)

    def recur(self, hidden: Tensor, layer: int, mix: Mix) -> Tensor:
        return mix(hidden, None)


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """A model's logits for random tokens."""

    logits: Tensor  # fp32 [NUM_TOKENS, vocab]
    calls: Sequence[LayerCall]  # of the model's layers
    dtype: torch.dtype  # of its weights

    def check(self, other: "Answer", *, rounds_inputs: bool = False) -> None:
        """Raise NotTheSame unless `other` is equal but for rounding.

        rounds_inputs: of the model's linears, to 8 bits: a value near the middle between two falls
        either way.
        """
        tolerance = _TOLERANCE[self.dtype]
        if rounds_inputs:
            tolerance = max(tolerance, _ROUNDED_TOLERANCE)
        difference = float((other.logits - self.logits).abs().max() / self.logits.abs().max())
        if other.calls != self.calls or not difference <= tolerance:
            raise NotTheSame(f"logits of the fused model differ by {difference:.2g}")


def ask(forward: TokenForward, model: Foreign, num_positions: int) -> Answer:
    """Run `forward`, made of `model`. num_positions: most tokens of a sequence."""
    weight = next(model.parameters())
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, model.config.vocab_size, (NUM_TOKENS,), generator=generator)
    positions = torch.linspace(0, num_positions - 1, NUM_TOKENS).long()
    wanted = torch.arange(NUM_TOKENS)
    attention = WholeAttention()
    places = [each.to(weight.device) for each in (tokens, positions, wanted)]
    logits = forward.logits(places[0], places[1], attention, places[2])
    return Answer(logits, attention.calls, weight.dtype)


@torch.inference_mode()
def check_forward(model: nn.Module, spec: ModelSpec) -> None:
    """Run random tokens through a model on the attention interface. Raises as `check_logits`."""
    tokens, positions = some_tokens(model, spec)
    check_logits(Forward(model).logits(tokens, positions, WholeAttention(), None), spec)


@torch.inference_mode()
def check_latents(model: nn.Module, config_file: Path) -> None:
    """Raise NotPaged unless our reading of the weights of latent attention is the model's own.

    Of the first such layer, if there is one. The error names `config_file`.
    """
    module: Foreign
    for module in model.modules():
        if value_width(module) is None:
            continue
        weight = module.kv_b_proj.weight
        generator = torch.Generator().manual_seed(0)
        latents, rotary_keys = (
            torch.randn((1, 1, NUM_TOKENS, size), generator=generator).to(weight)
            for size in (module.kv_lora_rank, module.qk_rope_head_dim)
        )
        difference = expands_otherwise(module, latents, rotary_keys)
        if not difference <= _TOLERANCE[weight.dtype]:
            message = f"its keys and values differ by {difference:.2g} from those we read"
            raise NotPaged(config_file, message)
        return


@torch.inference_mode()
def check_hidden(model: Foreign, spec: ModelSpec) -> None:
    """Raise LoadError unless a model without its output layer returns its last hidden states.

    Some kinds scale or cap logits, and some attend to later tokens too, which a paged cache cannot
    serve. The error names the model's config.json.
    """
    file = Path(spec.path, "config.json")
    if any(getattr(module, "is_causal", None) is False for module in model.modules()):
        raise LoadError(file, "its tokens attend to later ones: only decoders give embeddings here")
    tokens, positions = some_tokens(model, spec)
    expected = model.base_model(
        input_ids=tokens.unsqueeze(0),
        position_ids=positions.unsqueeze(0),
        use_cache=False,
        attention_batch=WholeAttention(),
    ).last_hidden_state[0]
    found = Forward(model).logits(tokens, positions, WholeAttention(), None)
    if found.shape != expected.shape or not torch.allclose(found, expected.float(), rtol=1e-3):
        raise LoadError(file, "this type of model changes its hidden states for its output layer")
    if found.shape[1] != spec.embedding_size:
        message = f"its hidden states have {found.shape[1]} numbers, not {spec.embedding_size}"
        raise LoadError(file, message)


def check_logits(logits: Tensor, spec: ModelSpec) -> None:
    """Raise LoadError if a row of `logits` [rows, vocab] holds NaN or +inf, or nothing finite.

    The error names the model's folder.
    """
    num_broken = int((~logits.amax(-1).isfinite()).sum())
    if not num_broken:
        return
    hint = ", or too large for float16: try dtype bfloat16" if spec.dtype == "float16" else ""
    message = f"its logits are not finite (NaN or infinite): the weights are broken{hint}"
    raise LoadError(Path(spec.path), message)


def some_tokens(model: Foreign, spec: ModelSpec) -> tuple[Tensor, Tensor]:
    """Return random tokens of the vocabulary and their positions, int64 [NUM_TOKENS] or fewer."""
    device, count = next(model.parameters()).device, min(NUM_TOKENS, spec.max_model_len)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, spec.vocab_size, (count,), generator=generator).to(device)
    return tokens, torch.arange(count, device=device)


def has_llama_layers(model: Foreign) -> bool:
    """Return whether the model is transformers' own and its layers are Llama's.

    They may have biases, and norms of queries and keys.
    """
    kind, config = type(model), model.config
    if kind.__name__ not in _MODELS or not kind.__module__.startswith("transformers.models."):
        return False
    rope = (config.rope_parameters or {}).get("rope_type")
    is_alike: bool = config.hidden_act == "silu" and rope in _ROPE_TYPES
    return is_alike
