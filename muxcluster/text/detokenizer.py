"""Turns token ids into text as they arrive, by whole characters."""

from collections.abc import Sequence, Set

from muxcluster.text.tokenizer import Tokenizer

_INCOMPLETE = "\N{REPLACEMENT CHARACTER}"
# tokens decoded again with each new one, at most (a run of byte-fallback tokens excepted)
MAX_WINDOW = 24
KEPT = 8  # tokens kept as context: a UTF-8 decoder is in step again after 3 bytes, a token has one


class Detokenizer:
    """Incremental decoding of one output in a small window of its last tokens.

    The result is the same text as decoding all tokens at once. Each push decodes the window again;
    what follows the characters already returned is new. Held back are a trailing U+FFFD (the start
    of a character, or a broken one) and, for tokenizers with byte fallback, a trailing run of byte
    tokens, which the library decodes as a whole.

    context: tokens before the first, such as a prompt's last few. Their text is not returned,
    except for a character that they leave incomplete. kept: special tokens that are not skipped.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        skip_special_tokens: bool = True,
        context: Sequence[int] = (),
        kept: Set[int] = frozenset(),
    ) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._kept = kept
        self._window = self._shown(context)
        self._num_given = len(_complete(self._decode()))

    def push(self, tokens: Sequence[int]) -> str:
        """Return the text that `tokens` complete."""
        self._window += self._shown(tokens)
        if not self._window or self._tokenizer.is_byte(self._window[-1]):
            return ""
        complete = _complete(self._decode())
        new = complete[self._num_given :]
        self._num_given = len(complete)
        if len(self._window) > MAX_WINDOW:
            self._window = self._window[-KEPT:]
            self._num_given = len(_complete(self._decode()))
        return new

    def finish(self) -> str:
        """Return the text held back so far, with U+FFFD for an incomplete character."""
        text = self._decode()
        new = text[self._num_given :]
        self._num_given = len(text)
        return new

    def _shown(self, tokens: Sequence[int]) -> list[int]:
        return [
            token
            for token in tokens
            if self._tokenizer.is_shown(token, self._skip and token not in self._kept)
        ]

    def _decode(self) -> str:
        # what is to be skipped is not in the window
        return self._tokenizer.decode(self._window, skip_special_tokens=False)


def _complete(text: str) -> str:
    return text[:-1] if text.endswith(_INCOMPLETE) else text
