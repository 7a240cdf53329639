"""The vocabulary of a model as the grammar engine needs it: the bytes of every token."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from muxcluster.constraints.rows import MaskModel
from muxcluster.core.errors import LoadError
from muxcluster.core.inputs.json_file import read_json_object
from muxcluster.core.inputs.token_bytes import ByteReader
from muxcluster.core.inputs.tokenizer_config import extra_special_tokens, special_tokens

# llguidance's mark of a token that is no text: a byte that is in no UTF-8 text
SPECIAL_MARK = b"\xff"


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Tokens of one model.

    tokens: bytes by token id; after `SPECIAL_MARK` the name of a special token, of an end token and
    of an entry of the logits that the tokenizer does not have: no text has such bytes. specials:
    id of every special token by its text. encode: ids of a text as the model's tokenizer splits it,
    without special tokens and without a space that is put in front.
    """

    tokens: Sequence[bytes]
    specials: Mapping[str, int]
    end_tokens: tuple[int, ...]
    encode: Callable[[str], list[int]]


def load_vocabulary(model: MaskModel) -> Vocabulary:
    """Read the vocabulary from the model's directory. Raises LoadError naming the file at fault."""
    directory = Path(model.path)
    file = directory / "tokenizer.json"
    if not file.is_file():
        raise LoadError(file, "no such file: constraints need a fast tokenizer")
    raw = read_json_object(file)
    try:
        fast: Tokenizer = Tokenizer.from_str(json.dumps(_without_prefix_space(raw)))
    except Exception as error:  # the library raises nothing narrower
        raise LoadError(file, f"not a tokenizer: {error}") from error
    fast.no_truncation()
    fast.no_padding()
    fast.encode_special_tokens = True  # "</s>" in a text is text
    specials = _specials(fast, directory)
    return Vocabulary(
        tokens=_tokens(fast, _decoder_parts(raw), {*specials.values(), *model.end_tokens}, model),
        specials=specials,
        end_tokens=model.end_tokens,
        encode=lambda text: list(fast.encode(text, add_special_tokens=False).ids),
    )


def _tokens(
    fast: Tokenizer, parts: Sequence[Mapping[str, Any]], marked: set[int], model: MaskModel
) -> list[bytes]:
    reader = ByteReader(parts)
    # Names for what the tokenizer does not have.
    found = [b"%s<[%d]>" % (SPECIAL_MARK, token) for token in range(model.vocab_size)]
    for piece, token in fast.get_vocab(with_added_tokens=True).items():
        if token < model.vocab_size:
            is_marked = token in marked
            found[token] = SPECIAL_MARK + piece.encode() if is_marked else reader.read(piece)
    return found


def _specials(fast: Tokenizer, directory: Path) -> dict[str, int]:
    """Return the special tokens: those that tokenizer.json or the config files call so."""
    added = fast.get_added_tokens_decoder()
    found = {entry.content: token for token, entry in added.items() if entry.special}
    for text in (*special_tokens(directory).values(), *extra_special_tokens(directory)):
        token = fast.token_to_id(text)
        if token is not None:
            found[text] = token
    return found


def _decoder_parts(raw: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the steps of the decoder."""
    decoder = raw.get("decoder")
    if not decoder:
        return []
    parts: list[dict[str, Any]] = decoder.get("decoders", [decoder])
    return parts


def _without_prefix_space(raw: dict[str, Any]) -> dict[str, Any]:
    """Return tokenizer.json's object, changed so that encoding puts no space before the text.

    What the grammar forces stands in the middle of a text.
    """
    normalizer = _map_steps(raw.get("normalizer"), "normalizers", _without_prepend)
    splitter = _map_steps(raw.get("pre_tokenizer"), "pretokenizers", _without_own_prefix)
    return {**raw, "normalizer": normalizer, "pre_tokenizer": splitter}


def _map_steps(
    step: dict[str, Any] | None,
    key: str,
    change: Callable[[dict[str, Any]], dict[str, Any] | None],
) -> dict[str, Any] | None:
    """Return `step`, or all steps of a sequence, changed; None stands for no step."""
    if step is None:
        return None
    if step.get("type") != "Sequence":
        return change(step)
    steps = [found for each in step[key] if (found := _map_steps(each, key, change)) is not None]
    return {**step, key: steps} if steps else None


def _without_prepend(step: dict[str, Any]) -> dict[str, Any] | None:
    return None if step.get("type") == "Prepend" else step


def _without_own_prefix(step: dict[str, Any]) -> dict[str, Any]:
    if step.get("type") == "Metaspace":
        return {**step, "prepend_scheme": "never"}
    if step.get("type") == "ByteLevel":
        return {**step, "add_prefix_space": False}
    return step
