"""Prompt lookup: guesses what follows a text by what followed its end where that occurs before.

Saxena, "Prompt Lookup Decoding", 2023; vLLM calls it `ngram`.
"""

import numpy as np
from numpy.typing import NDArray


def looked_up(
    tokens: NDArray[np.int32], most: int, *, longest: int, shortest: int
) -> NDArray[np.int32]:
    """Return up to `most` tokens that are likely to follow `tokens`, int32 [n] with n >= 1.

    They are what followed the longest end of `tokens` that occurs before, of `longest` tokens at
    most; where it occurs several times, the last time. None where that has less than `shortest`
    tokens. What followed goes on from its own beginning where it reaches the end of `tokens`: a
    text that repeats itself is expected to go on with that.
    """
    num_tokens = len(tokens)
    # Where occurrences of the last token, then of the last two, and so on, end.
    ends = (tokens[:-1] == tokens[-1]).nonzero()[0] + 1
    length = min(1, len(ends))
    while length and length < longest:
        ends_before = ends[ends > length]
        is_longer = tokens[ends_before - length - 1] == tokens[num_tokens - length - 1]
        if not np.count_nonzero(is_longer):
            break
        ends = ends_before[is_longer]
        length += 1
    if length == 0 or length < shortest or most < 1:
        return tokens[:0]
    end = int(ends[-1])
    places = end + np.arange(most) % (num_tokens - end)
    return tokens[places]
