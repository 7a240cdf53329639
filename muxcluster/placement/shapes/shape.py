"""Model shapes and derived numbers: parameters, KV bytes, FLOPs."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from muxcluster.core.kvshape import KvDtype, KvFormat, kv_format
from muxcluster.placement.shapes.config_values import ShapeError
from muxcluster.placement.shapes.hf_config import shape_fields
from muxcluster.placement.shapes.latent import LatentAttention
from muxcluster.placement.shapes.weight_format import WeightFormat

__all__ = ["STATE_ITEMSIZE", "ModelShape", "ShapeError"]

# Bytes of a state element: models keep states in fp32, in any dtype of the weights.
STATE_ITEMSIZE = 4


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of one decoder-only model of attention, of states of fixed size, or of both.

    The embeddings of the one model (OPT-350M) whose embedding is narrower than its layers are
    overestimated. FLOPs of a state are those of its matrices alone; the rest of its recurrence is
    left out.
    """

    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int  # of one expert if there are several
    vocab_size: int
    max_position: int  # longest context
    gated_mlp: bool = True  # three MLP matrices, not two
    tied_embeddings: bool = False
    learned_positions: bool = False
    num_experts: int = 1  # 1 for a dense model
    experts_per_token: int = 1
    shared_intermediate_size: int = 0  # of the MLP that every token passes beside its experts
    # num_dense_layers, dense_intermediate_size: layers that have one MLP in place of experts
    num_dense_layers: int = 0
    dense_intermediate_size: int = 0
    num_keyless_layers: int = 0  # layers without keys and values
    num_state_layers: int = 0  # layers with a state, of state_params weights each
    state_params: int = 0
    state_size: int = 0  # elements of the states of one sequence, of all layers
    # Its attention is on the paged path, beside states in blocks of their own; False: a model with
    # states runs on its own cache
    pages_states: bool = False
    # of the layers' linears, or of their experts alone; None: elements as all others
    weights: WeightFormat | None = None
    head: WeightFormat | None = None  # of an output layer that is not tied; None: likewise
    kv_dtype: KvDtype = "auto"  # of keys and values; "auto": elements as all others
    # Layers that keep latents in place of keys and values: num_kv_heads and head_dim are then those
    # that latents are stored in, not of the model's heads. None: they keep keys and values
    latent: LatentAttention | None = None
    # Tokens of `window_layers`, ascending, see only the last `window` tokens, each itself among
    # them; 0 and none: all layers see all tokens.
    window: int = 0
    window_layers: tuple[int, ...] = ()
    vision_params: int = 0  # weights of what reads images, which no step of text touches

    @classmethod
    def from_hf_config(cls, source: Path | str | Mapping[str, Any]) -> "ModelShape":
        """Build the shape from a config.json: its content, the file, or its directory.

        Raises OSError or ShapeError.
        """
        return cls(**shape_fields(source))

    @property
    def num_attention_layers(self) -> int:
        """Layers with keys and values."""
        return self.num_layers - self.num_keyless_layers

    @property
    def attention_params(self) -> int:
        """Weights of one layer's query, key, value and output matrices."""
        if self.latent is not None:
            return self.latent.num_params(self.hidden_size, self.num_heads)
        return 2 * self.hidden_size * self.head_dim * (self.num_heads + self.num_kv_heads)

    @property
    def expert_params(self) -> int:
        """Weights of one layer's MLP, or of one of its experts."""
        return self._mlp_params(self.intermediate_size)

    @property
    def embedding_params(self) -> int:
        """Weights of the token (and learned position) embeddings."""
        positions = self.max_position if self.learned_positions else 0
        return (self.vocab_size + positions) * self.hidden_size

    @property
    def num_params(self) -> int:
        """Weights of all matrices (biases and norms, below 0.1 %, left out)."""
        head = 0 if self.tied_embeddings else self.vocab_size * self.hidden_size
        decoder = self.embedding_params + head + self._layers_params(self.num_experts)
        return decoder + self.vision_params

    @property
    def active_params(self) -> int:
        """Weights that one token is multiplied with, the output head included."""
        layers = self._layers_params(self.experts_per_token)
        return layers + self.vocab_size * self.hidden_size

    def touched_params(self, num_tokens: float) -> float:
        """Weights read for a batch of `num_tokens`; of the experts, those that some token chose."""
        experts = self._touched_experts(num_tokens)
        return self._layers_params(experts) + self.vocab_size * self.hidden_size

    def weight_bytes(self, itemsize: int) -> int:
        """Bytes of `num_params` weights; of what is not quantised `itemsize` an element."""
        return int(self._bytes(self.num_params, self.num_experts, itemsize))

    def active_bytes(self, itemsize: int) -> int:
        """Bytes of `active_params`."""
        return int(self._bytes(self.active_params, self.experts_per_token, itemsize))

    def touched_bytes(self, num_tokens: float, itemsize: int) -> float:
        """Bytes of `touched_params`."""
        experts = self._touched_experts(num_tokens)
        return self._bytes(self.touched_params(num_tokens), experts, itemsize)

    def kv_format(self, itemsize: int) -> KvFormat:
        """How keys and values are stored. itemsize: bytes of an element of the model's dtype."""
        return kv_format(self.kv_dtype, itemsize)

    def kv_bytes_per_token(self, itemsize: int) -> int:
        """Keys and values of one token over all layers, scales included."""
        slot_bytes = self.kv_format(itemsize).slot_bytes(self.head_dim)
        return 2 * self.num_attention_layers * self.num_kv_heads * slot_bytes

    def tokens_seen(self, num_tokens: float) -> float:
        """Tokens that a layer with keys and values sees after so many, on average over layers."""
        if not self.window_layers:
            return num_tokens
        part = len(self.window_layers) / self.num_attention_layers
        return num_tokens + part * (min(num_tokens, self.window) - num_tokens)

    def sequence_bytes(self, num_tokens: float, itemsize: int) -> float:
        """Keys, values and states over all layers that a sequence needs to go on."""
        states = STATE_ITEMSIZE * self.state_size
        return self.tokens_seen(num_tokens) * self.kv_bytes_per_token(itemsize) + states

    @property
    def attention_flops(self) -> int:
        """FLOPs of one token that attends to one token, over all layers."""
        if self.latent is not None:
            return self.num_attention_layers * self.latent.flops(self.num_heads)
        return 4 * self.num_attention_layers * self.num_heads * self.head_dim

    def flops_per_token(self, context: float) -> float:
        """FLOPs of one token that attends to `context` tokens."""
        attention = self.attention_flops * self.tokens_seen(context)
        return 2 * self.active_params + attention

    def _touched_experts(self, num_tokens: float) -> float:
        """Experts of a layer that some of `num_tokens` chose."""
        miss = (1 - self.experts_per_token / self.num_experts) ** num_tokens
        return self.num_experts * (1 - miss) if self.num_experts > 1 else 1.0

    def _bytes(self, num_params: float, experts: float, itemsize: int) -> float:
        """Bytes of so many weights, those of the layers with so many experts each among them.

        And those of an output layer that is not tied.
        """
        found = num_params * itemsize
        if self.weights is not None:
            fixed, per_expert = _layer_weights(self)
            in_layers = experts * per_expert + (0 if self.weights.of_experts else fixed)
            found += in_layers * (self.weights.bytes_per_weight(self.hidden_size) - itemsize)
        if self.head is not None:
            in_head = self.vocab_size * self.hidden_size
            found += in_head * (self.head.bytes_per_weight(self.hidden_size) - itemsize)
        return found

    def _mlp_params(self, size: int) -> int:
        return (3 if self.gated_mlp else 2) * self.hidden_size * size

    def _layers_params(self, experts: float) -> int:
        """Weights of all layers with so many experts each."""
        fixed, per_expert = _layer_weights(self)
        return int(fixed + experts * per_expert)


@lru_cache(maxsize=4096)  # a plan asks for these a million times
def _layer_weights(shape: ModelShape) -> tuple[int, int]:
    """Return the weights of all layers without experts, and of one expert in each of them."""
    router = shape.hidden_size * shape.num_experts if shape.num_experts > 1 else 0
    shared = shape._mlp_params(shape.shared_intermediate_size)
    num_sparse = shape.num_layers - shape.num_dense_layers
    dense = shape.num_dense_layers * shape._mlp_params(shape.dense_intermediate_size)
    mixers = shape.num_attention_layers * shape.attention_params
    mixers += shape.num_state_layers * shape.state_params
    return mixers + dense + num_sparse * (router + shared), num_sparse * shape.expert_params
