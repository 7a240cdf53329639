"""Reads the small JSON files of a Hugging Face directory about a model's text."""

from pathlib import Path
from typing import Any

from muxcluster.core.inputs.json_file import read_json_object

_ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in `path`, empty if there is no such file.

    Raises LoadError if the file cannot be read or holds anything else.
    """
    return read_json_object(path) if path.is_file() else {}


def tokenizer_config(directory: Path) -> dict[str, Any]:
    """Return the content of tokenizer_config.json. Raises LoadError."""
    return read_object(directory / "tokenizer_config.json")


def special_tokens(directory: Path) -> dict[str, str]:
    """Return the text of the directory's special tokens by name ("bos_token", ...).

    tokenizer_config.json wins over the older special_tokens_map.json. Raises LoadError.
    """
    found: dict[str, str] = {}
    merged = read_object(directory / "special_tokens_map.json") | tokenizer_config(directory)
    for name in (f"{role}_token" for role in _ROLES):
        text = _content(merged.get(name))
        if text is not None:
            found[name] = text
    return found


def extra_special_tokens(directory: Path) -> list[str]:
    """Return the special tokens without a role, from the same two files. Raises LoadError."""
    merged = read_object(directory / "special_tokens_map.json") | tokenizer_config(directory)
    listed = merged.get("additional_special_tokens") or merged.get("extra_special_tokens") or []
    values = listed.values() if isinstance(listed, dict) else listed
    return [text for text in map(_content, values) if text is not None]


def _content(token: object) -> str | None:
    """Return the text of a token that is written as text or as an object with `content`."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None
