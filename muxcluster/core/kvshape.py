"""Layout of one model's keys and values in the unit's uniform blocks (design.md §3)."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final, Literal

# How keys and values are stored: "auto" in the model's dtype, or rounded to 8 bits.
KvDtype = Literal["auto", "int8", "fp8_e4m3"]


@dataclass(frozen=True, slots=True)
class KvFormat:
    """Bytes of a stored key or value of one token and KV head."""

    itemsize: int  # of an element
    scale_bytes: int = 0  # of the scale that follows the elements

    def slot_bytes(self, head_dim: int) -> int:
        """Bytes of a key or value of `head_dim` elements."""
        return head_dim * self.itemsize + self.scale_bytes


_ROUNDED: Final[Mapping[str, KvFormat]] = {"int8": KvFormat(1, 4), "fp8_e4m3": KvFormat(1)}


@cache  # a plan asks a million times
def kv_format(kv_dtype: KvDtype, itemsize: int) -> KvFormat:
    """Return how keys and values are stored. itemsize: bytes of an element of the model's dtype."""
    return _ROUNDED.get(kv_dtype) or KvFormat(itemsize)


@dataclass(frozen=True, slots=True)
class KvShape:
    """K and V shape of a model. A *column* is one token block over all layers and KV heads."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    itemsize: int  # Bytes per element in the pool: 1 for 8-bit KV, 2 for 16-bit, 4 for fp32
    scale_bytes: int = 0  # of one token and KV head's key or value, behind its elements

    @property
    def blocks_per_column(self) -> int:
        """Blocks that a sequence needs for each `block_tokens` tokens."""
        return self.num_layers * self.num_kv_heads

    @property
    def slot_bytes(self) -> int:
        """Bytes of a key or value of one token and KV head."""
        return KvFormat(self.itemsize, self.scale_bytes).slot_bytes(self.head_dim)

    @property
    def bytes_per_token(self) -> int:
        """KV bytes of one token over all layers and KV heads."""
        return 2 * self.blocks_per_column * self.slot_bytes

    def block_tokens(self, block_bytes: int) -> int:
        """Return the token slots in a block of `block_bytes`, as `slots_of_block`.

        Raises ValueError if a block would hold fewer than 8 tokens.
        """
        tokens = slots_of_block(
            block_bytes, self.head_dim, KvFormat(self.itemsize, self.scale_bytes)
        )
        if tokens == 0:
            raise ValueError(
                f"a block of {block_bytes} bytes holds fewer than 8 tokens at head_dim "
                f"{self.head_dim}: raise policy.block_tokens"
            )
        return tokens


def slots_of_block(block_bytes: int, head_dim: int, form: KvFormat) -> int:
    """Return the token slots in a block, K and V of each; 0 if fewer than 8 fit.

    A multiple of 8, but for formats with a scale, of which as many tokens as fit: 31 of int8 are
    where 16 of 16 bits are, and the last multiple of 8 would be 24.
    """
    tokens = block_bytes // (2 * form.slot_bytes(head_dim))
    if form.scale_bytes:
        return tokens if tokens >= 8 else 0
    return tokens // 8 * 8


def block_bytes(block_tokens: int, itemsize: int) -> int:
    """Bytes of a block (K half then V half) for `policy.block_tokens` at head_dim 128."""
    return 2 * 128 * block_tokens * itemsize
