"""A sampler without a model: draws tokens that a mask allows, each from its own random number."""

import random
from collections.abc import Callable, Sequence

import numpy as np

from muxcluster.constraints.rows import MaskRow, Masks
from muxcluster.constraints.vocabulary import Vocabulary
from muxcluster.core.sampling import Constraint

Ask = Callable[[Sequence[MaskRow]], Masks]
MOST_TOKENS = 600
# Tokens that end something are drawn more often, or random texts would never end.
_WEIGHTS = {b'"': 40.0, b"}": 60.0, b"]": 60.0, b'"}': 20.0, b'"]': 20.0}


class Sampler:
    """Draws outputs of one model's vocabulary."""

    def __init__(self, model: str, vocabulary: Vocabulary) -> None:
        self.model = model
        self._vocabulary = vocabulary
        self._weights = np.array([_WEIGHTS.get(text, 1.0) for text in vocabulary.tokens])
        # So few that whitespace is seen, and so many that it does not fill the texts.
        blank = [token for token, text in enumerate(vocabulary.tokens) if not text.strip()]
        self._weights[blank] = 0.05
        self._weights[list(vocabulary.end_tokens)] = 30.0

    def draw(
        self, ask: Ask, constraint: Constraint, seed: int, request_id: str = "r"
    ) -> tuple[list[int], bool]:
        """Return output tokens and whether they are complete."""
        tokens: list[int] = []
        while len(tokens) < MOST_TOKENS:
            row = MaskRow(self.model, request_id, constraint, np.array(tokens, np.int32))
            masks = ask([row])
            assert not masks.errors, (masks.errors, self.text(tokens))
            token = self.next_token(masks, 0, seed, len(tokens))
            if token in self._vocabulary.end_tokens:
                return tokens, True
            assert not masks.must_end[0]
            tokens.append(token)
        return tokens, False

    def next_token(self, masks: Masks, row: int, seed: int, at: int) -> int:
        """Return the token that the random number of output token `at` stands for."""
        size = len(self._weights)
        allowed = np.unpackbits(masks.bits[row].view(np.uint8), bitorder="little")
        assert not allowed[size:].any()
        weights = self._weights * allowed[:size]
        total = np.cumsum(weights)
        assert total[-1] > 0, "nothing is allowed"
        point = random.Random(f"{seed} {at}").random() * total[-1]
        return int(np.searchsorted(total, point, side="right"))

    def text(self, tokens: Sequence[int]) -> str:
        """Return the text of output tokens."""
        return b"".join(self._vocabulary.tokens[token] for token in tokens).decode()

    def accepts(self, ask: Ask, constraint: Constraint, text: str, request_id: str) -> bool:
        """True if the masks let the model write exactly this text, in some tokens or others."""
        rest, tokens = text.encode(), list[int]()
        while True:
            row = MaskRow(self.model, request_id, constraint, np.array(tokens, np.int32))
            masks = ask([row])
            assert not masks.errors, (masks.errors, text)
            bits = np.unpackbits(masks.bits[0].view(np.uint8), bitorder="little")
            allowed = {int(token) for token in np.flatnonzero(bits)}
            if not rest:
                return allowed >= set(self._vocabulary.end_tokens)
            texts = {token: self._vocabulary.tokens[token] for token in allowed}
            fitting = [token for token, each in texts.items() if each and rest.startswith(each)]
            if not fitting:
                return False
            token = max(fitting, key=lambda token: len(texts[token]))
            tokens.append(token)
            rest = rest[len(texts[token]) :]
