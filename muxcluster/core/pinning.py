"""What a planned batch job asks of its unit's prefix cache."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class PinnedPrefix:
    """Batch requests of `model` that begin with `tokens` (int32 [n]) are to come.

    pin_id: one that is known already names this prefix from now on. cache_salt: the requests'.
    """

    pin_id: str
    model: str
    tokens: NDArray[np.int32]
    cache_salt: str = ""


@dataclass(frozen=True, slots=True)
class Unpin:
    """None of them is to come any more."""

    pin_id: str
