"""A batch job: requests of one model that are all known before the first one runs."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class BatchJob:
    """Prompts in one flat array, in the order of the file."""

    ids: NDArray[np.int32]  # int32 [total]; one id per token, equal ids for equal tokens
    offsets: NDArray[np.int64]  # int64 [n + 1]; prompt i is ids[offsets[i]:offsets[i + 1]]
    output_tokens: NDArray[np.int64]  # int64 [n], true lengths or upper limits
    num_known: int  # requests whose output_tokens is a true length

    def __len__(self) -> int:
        return len(self.output_tokens)
