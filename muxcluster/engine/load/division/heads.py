"""Heads of one rank: which it has, and what its attention modules are told of them."""

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass

from torch import nn

from muxcluster.engine.load.division.part import Part
from muxcluster.placement.shapes.division import rank_kv_heads

_KEYS_AND_VALUES = frozenset({"k_proj", "v_proj"})


@dataclass(frozen=True, slots=True)
class RankHeads:
    """The heads of a model, of which rank `rank` of `size` has a part; all have equally many."""

    num_heads: int
    num_kv_heads: int
    rank: int
    size: int

    @property
    def kv_heads(self) -> tuple[int, ...]:
        """The model's KV heads that this rank has."""
        return rank_kv_heads(self.num_heads, self.num_kv_heads, self.rank, self.size)

    @property
    def query_heads(self) -> range:
        """The model's query heads that this rank has."""
        here = self.num_heads // self.size
        return range(self.rank * here, (self.rank + 1) * here)

    def are_keys_or_values(self, name: str) -> bool:
        """Return whether the linear of that name makes keys or values of all KV heads."""
        return name.rpartition(".")[2] in _KEYS_AND_VALUES

    def kv_part(self, num_rows: int) -> Part:
        """Return this rank's rows of a weight that makes keys or values, of `num_rows`."""
        return Part.of_heads(self.kv_heads, num_rows // self.num_kv_heads)

    def qkv_part(self, num_rows: int) -> Part:
        """Return this rank's rows of a weight that makes all queries, then keys, then values."""
        rows = num_rows // (self.num_heads + 2 * self.num_kv_heads)
        keys = [self.num_heads + head for head in self.kv_heads]
        values = [self.num_kv_heads + head for head in keys]
        return Part.of_heads((*self.query_heads, *keys, *values), rows)

    def tell(self, owner: nn.Module, *, reads_config: bool) -> None:
        """Set the numbers of heads that `owner` keeps, if any, to this rank's.

        reads_config: it takes them from its configuration in its forward.
        """
        # Not a rule of the library, but what its attention modules have in common. One that reads
        # another number in its forward fails when the model is probed.
        if reads_config:
            owner.config = copy(owner.config)
            self._set(owner.config)
        self._set(owner)

    def _set(self, keeper: object) -> None:
        for name, (whole, mine) in self._counts().items():
            if getattr(keeper, name, None) == whole:
                setattr(keeper, name, mine)

    def _counts(self) -> Mapping[str, tuple[int, int]]:
        """Return numbers of heads, of the model and of this rank, by names of attributes."""
        here, kv_here = self.num_heads // self.size, len(self.kv_heads)
        heads, kv_heads = (self.num_heads, here), (self.num_kv_heads, kv_here)
        return {
            "num_heads": heads,
            "num_attention_heads": heads,
            "num_key_value_heads": kv_heads,
            "num_key_value_groups": (self.num_heads // self.num_kv_heads, here // kv_here),
        }
