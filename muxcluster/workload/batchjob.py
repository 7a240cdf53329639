"""A batch job: requests of one model that are all known before the first one runs."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class BatchJob:
    """Prompts one after the other, as they stand in the file.

    ids: int32 [total]; one id a token, equal ids for equal tokens. offsets: int64 [n + 1]; prompt
        i is ids[offsets[i]:offsets[i + 1]].
    output_tokens: int64 [n], as many as each request gets, or at most gets.
    num_known: of how many requests output_tokens is said to be what they get.
    """

    ids: NDArray[np.int32]
    offsets: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    num_known: int

    def __len__(self) -> int:
        return len(self.output_tokens)
