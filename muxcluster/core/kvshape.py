"""Layout of one model's keys and values in the unit's uniform blocks (design.md §3)."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KvShape:
    """K and V shape of a model. A *column* is one token block over all layers and KV heads."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    itemsize: int  # Bytes per element in the pool: 2 for 16-bit, 4 for fp32

    @property
    def blocks_per_column(self) -> int:
        """Blocks that a sequence needs for each `block_tokens` tokens."""
        return self.num_layers * self.num_kv_heads

    @property
    def bytes_per_token(self) -> int:
        """KV bytes of one token over all layers and KV heads."""
        return 2 * self.blocks_per_column * self.head_dim * self.itemsize

    def block_tokens(self, block_bytes: int) -> int:
        """Return the token slots in a block of `block_bytes`, a multiple of 8.

        Raises ValueError if a block would hold fewer than 8 tokens.
        """
        tokens = block_bytes // (2 * self.head_dim * self.itemsize) // 8 * 8
        if tokens == 0:
            raise ValueError(
                f"a block of {block_bytes} bytes holds fewer than 8 tokens at head_dim "
                f"{self.head_dim}: raise policy.block_tokens"
            )
        return tokens


def block_bytes(block_tokens: int, itemsize: int) -> int:
    """Bytes of a block (K half then V half) for `policy.block_tokens` at head_dim 128."""
    return 2 * 128 * block_tokens * itemsize
