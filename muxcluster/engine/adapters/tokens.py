"""Which adapters the tokens of a forward have."""

import threading
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from muxcluster.kernels.products.low_rank_update import TILE_TOKENS

NO_ADAPTER = -1  # of a row or token, in arrays of places in the model's list of adapters


@dataclass(frozen=True, slots=True, eq=False)
class AdapterTokens:
    """The tokens of one forward by their adapters, as `low_rank_update` takes them."""

    tokens: Tensor  # int64 [n], those with an adapter, adapter after adapter
    tiles: Tensor  # int32 [tiles, 3]: an adapter, the first of its entries in `tokens`, how many
    num_tokens: int  # of the forward

    @classmethod
    def of(cls, adapters: NDArray[np.int32], device: torch.device) -> "AdapterTokens":
        """Return the tokens by adapter. adapters: int32 [tokens], NO_ADAPTER for one without."""
        most = len(adapters) if device.type == "cpu" else TILE_TOKENS
        tokens, tiles = by_adapter(adapters, most)
        return cls(
            torch.from_numpy(tokens).to(device), torch.from_numpy(tiles).to(device), len(adapters)
        )

    def adapters(self) -> Tensor:
        """Return the adapter of each token, int32 [num_tokens], NO_ADAPTER for one without."""
        found = torch.full((self.num_tokens,), NO_ADAPTER, dtype=torch.int32)
        counts = self.tiles[:, 2].long()
        adapters = self.tiles[:, 0].repeat_interleave(counts)
        found[self.tokens[: len(adapters)]] = adapters
        return found


def by_adapter(
    adapters: NDArray[np.int32], most: int
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Return `tokens` and `tiles` of an `AdapterTokens`. most: tokens of a tile."""
    order = np.argsort(adapters, kind="stable")
    tokens = order[adapters[order] != NO_ADAPTER].astype(np.int64)
    found, counts = np.unique(adapters[tokens], return_counts=True)
    tiles: list[tuple[int, int, int]] = []
    start = 0
    for adapter, count in zip(found.tolist(), counts.tolist(), strict=True):
        for first in range(0, count, most):
            tiles.append((adapter, start + first, min(most, count - first)))
        start += count
    return tokens, np.array(tiles, dtype=np.int32).reshape(-1, 3)


class CurrentTokens(threading.local):
    """The tokens of the forward that the calling thread is in; one object a model.

    transformers' modules hand their linears nothing but inputs, so a linear cannot be told in any
    other way. Threads run forwards of one model side by side.
    """

    tokens: AdapterTokens | None = None  # None: no token has an adapter
