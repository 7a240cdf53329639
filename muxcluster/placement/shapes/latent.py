"""Multi-head latent attention: what a token keeps, its weights and FLOPs (DeepSeek-V2, § 2.1).

A token keeps one latent, of which every head's key and value are linear functions, and one rotary
key that all heads share; here both together are called its latent. It is stored in KV heads like
any other keys and values: cut into pieces of equal length, each one head's key half and value half
(`stored_heads`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from muxcluster.placement.shapes.config_values import ShapeError, first_integer, integer

# Model types whose latents the engine keeps (tests/engine/forward/test_latents.py).
SERVED = frozenset({"deepseek_v2", "deepseek_v3", "glm4_moe_lite", "kimi_k2", "minicpm3", "youtu"})

# A piece is the largest power of two that divides the width: any half block holds a whole number of
# them, so nothing of a block is left empty.
_MOST_PIECE = 256
_LEAST_PIECE = 16


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Sizes of one layer's latent attention."""

    kv_rank: int  # elements of the latent that keys and values are made of
    rope_dim: int  # of the rotary key behind it
    nope_dim: int  # of a head's key without positions
    value_dim: int  # of a head's value
    query_rank: int = 0  # of the latent that queries are made of; 0: of the hidden state itself

    @property
    def width(self) -> int:
        """Elements that a token keeps in a layer."""
        return self.kv_rank + self.rope_dim

    @property
    def stored_heads(self) -> tuple[int, int]:
        """KV heads that hold a token's latent, and their head_dim: half of a piece.

        576 elements (DeepSeek-V3) are 9 heads of 32.
        """
        piece = min(self.width & -self.width, _MOST_PIECE)
        return self.width // piece, piece // 2

    def num_params(self, hidden_size: int, num_heads: int) -> int:
        """Weights of one layer's matrices."""
        queries = num_heads * (self.nope_dim + self.rope_dim)
        made_of = self.query_rank or hidden_size
        found = made_of * queries + hidden_size * self.query_rank
        found += hidden_size * self.width
        found += self.kv_rank * num_heads * (self.nope_dim + self.value_dim)
        return found + num_heads * self.value_dim * hidden_size

    def flops(self, num_heads: int) -> int:
        """FLOPs of one token that attends to one kept latent, in one layer."""
        return 2 * num_heads * (self.width + self.kv_rank)

    def num_activations(self, num_heads: int) -> int:
        """Elements of one token's queries, in latents' space too, and of what they attended to."""
        of_head = self.nope_dim + self.rope_dim + 2 * self.width + self.kv_rank + self.value_dim
        return num_heads * of_head


def latent_attention(config: Mapping[str, Any], kind: str, head_dim: int) -> LatentAttention | None:
    """Return the sizes that a config.json of model type `kind` gives; None: it has other attention.

    head_dim: elements of the hidden state for each head, of which values have as many by default.
    Raises ShapeError for a type whose latents cannot be served, or sizes that cannot be stored.
    """
    rank = integer(config, "kv_lora_rank", 0)
    if not rank:
        return None
    if kind not in SERVED:
        types = ", ".join(sorted(SERVED))
        message = f"multi-head latent attention of other model types than {types}"
        raise ShapeError(f"kv_lora_rank is set: no support for {message}")
    found = LatentAttention(
        kv_rank=rank,
        rope_dim=_size(config, "qk_rope_head_dim"),
        nope_dim=_size(config, "qk_nope_head_dim"),
        value_dim=_size(config, "v_head_dim", head_dim),
        query_rank=integer(config, "q_lora_rank", 0),
    )
    if found.width % _LEAST_PIECE:
        raise ShapeError(
            f"kv_lora_rank + qk_rope_head_dim is {found.width}, "
            f"expected a multiple of {_LEAST_PIECE}"
        )
    return found


def _size(config: Mapping[str, Any], key: str, default: int | None = None) -> int:
    found = first_integer(config, (key,)) or default
    if not found:
        raise ShapeError(f"{key} is missing")
    return found
