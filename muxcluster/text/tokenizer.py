"""A model's tokenizer, read from its tokenizer.json by the `tokenizers` library alone."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as FastTokenizer

from muxcluster.core.errors import LoadError
from muxcluster.core.inputs.token_bytes import ByteReader
from muxcluster.core.inputs.tokenizer_config import extra_special_tokens, special_tokens


class Tokenizer:
    """Turns text into token ids and back, like the model's Hugging Face fast tokenizer.

    As there, only tokenizer.json's post-processor adds bos and eos. One difference: decoding never
    removes spaces before punctuation (`clean_up_tokenization_spaces`), as a stream cannot.
    """

    def __init__(self, fast: FastTokenizer) -> None:
        self._fast = fast
        self._bytes = ByteReader(_decoder_parts(fast))
        self._special = frozenset(_special_ids(fast))
        self.vocab_size: int = fast.get_vocab_size(with_added_tokens=True)
        # characters of the longest entry: a text has at least len(text) / longest tokens
        self.longest: int = max(map(len, fast.get_vocab(with_added_tokens=True)), default=1)

    @classmethod
    def load(cls, path: Path | str) -> "Tokenizer":
        """Return the tokenizer in directory `path`.

        Raises LoadError naming the missing or corrupt file.
        """
        directory = Path(path)
        file = directory / "tokenizer.json"
        if not file.is_file():
            raise LoadError(file, "no such file: the model needs a fast tokenizer")
        try:
            fast = FastTokenizer.from_file(str(file))
        except Exception as error:  # the library raises nothing narrower
            raise LoadError(file, f"not a tokenizer: {error}") from error
        fast.no_truncation()
        fast.no_padding()
        _mark_special(fast, directory)
        return cls(fast)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of `text`, with the post-processor's (such as bos) if asked for."""
        ids: list[int] = self._fast.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def encode_pair(self, first: str, second: str) -> list[int]:
        """Return the token ids of two texts that a model reads at once, with special tokens."""
        ids: list[int] = self._fast.encode(first, second).ids
        return ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Return the text of `ids`; ids outside the vocabulary have none."""
        text: str = self._fast.decode(list(ids), skip_special_tokens=skip_special_tokens)
        return text

    def token_text(self, token: int) -> str:
        """Return one token's text with a leading space, if any; U+FFFD for parts of characters."""
        return self.token_bytes(token).decode("utf-8", errors="replace")

    def token_bytes(self, token: int) -> bytes:
        """Return the UTF-8 bytes of one token; empty outside the vocabulary."""
        piece = self._fast.id_to_token(token)
        return b"" if piece is None else self._bytes.read(piece)

    def is_shown(self, token: int, skip_special_tokens: bool) -> bool:
        """False for a token that leaves no text: outside the vocabulary, or skipped as special."""
        if skip_special_tokens and token in self._special:
            return False
        return bool(self._fast.id_to_token(token))

    def token_id(self, text: str) -> int | None:
        """Return the id of the vocabulary's entry `text`, None if there is none."""
        token: int | None = self._fast.token_to_id(text)
        return token

    def is_special(self, token: int) -> bool:
        """True for a token that is skipped as special."""
        return token in self._special

    def is_byte(self, token: int) -> bool:
        """True for a byte-fallback token: its text depends on the byte tokens around it."""
        piece = self._fast.id_to_token(token)
        return piece is not None and self._bytes.is_fallback(piece)


def _special_ids(fast: FastTokenizer) -> list[int]:
    added = fast.get_added_tokens_decoder()
    return [token for token, entry in added.items() if entry.special]


def _decoder_parts(fast: FastTokenizer) -> list[dict[str, Any]]:
    """Return the decoder's steps as JSON objects."""
    if fast.decoder is None:
        return []
    decoder = json.loads(fast.decoder.__getstate__())
    parts: list[dict[str, Any]] = decoder.get("decoders", [decoder])
    return parts


def _mark_special(fast: FastTokenizer, directory: Path) -> None:
    """Make the tokens special that the config files call so, whatever tokenizer.json says."""
    texts = [*special_tokens(directory).values(), *extra_special_tokens(directory)]
    known = {token.content for token in fast.get_added_tokens_decoder().values() if token.special}
    fresh = dict.fromkeys(text for text in texts if text not in known)
    fast.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in fresh])
