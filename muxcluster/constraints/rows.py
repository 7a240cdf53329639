"""What a unit and its workers ask of the mask process, and the answer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from muxcluster.core.sampling import Constraint


@dataclass(frozen=True, slots=True)
class MaskModel:
    """A model whose requests may have constraints.

    path: directory with its tokenizer.json. vocab_size: of its logits, which may have more entries
    than the tokenizer knows. end_tokens: `eos_token_ids`.
    """

    name: str
    path: str
    vocab_size: int
    end_tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MaskRow:
    """A row whose next token must follow its constraint.

    tokens: int32, all output tokens so far. joins: `Masks.runs` is wanted.
    """

    model: str
    request_id: str
    constraint: Constraint
    tokens: NDArray[np.int32]
    joins: bool = False


@dataclass(frozen=True, slots=True)
class Masks:
    """Which tokens may come next, for each of the rows asked for.

    bits: by row, uint32 [ceil(vocab_size / 32)]; token t is allowed if bit t % 32 of word t // 32
    is set. Equal masks may be one array. The model's end tokens are allowed, all of them, exactly
    where the grammar may end.
    must_end: bool [rows], True where nothing but an end token is allowed: the output is complete.
    errors: by row, why it has no mask (its bits are zero): its tokens do not match its grammar, or
    the grammar is too complex.
    runs: by row, the tokens that must follow one another, two or more, of which the mask allows the
    first: after each of them but the last, too, the mask allows one token alone, which is no end
    token. A run may go on behind the last one.
    """

    bits: Sequence[NDArray[np.uint32]]
    must_end: NDArray[np.bool_]
    errors: Mapping[int, str]
    runs: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
