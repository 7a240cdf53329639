"""Messages of a planned batch job to its unit's prefix cache."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class PinnedPrefix:
    """Keep the prefix `tokens` (int32 [n]): batch requests of `model` with it will follow."""

    pin_id: str  # a known id is rebound to this prefix
    model: str
    tokens: NDArray[np.int32]
    cache_salt: str = ""  # of the requests


@dataclass(frozen=True, slots=True)
class Unpin:
    """Drop a pin: no more requests with its prefix will follow."""

    pin_id: str
