"""Log-probabilities in OpenAI's two formats."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from muxcluster.core.job import TokenLogprobs
from muxcluster.http.calls.choice import PlacedLogprob
from muxcluster.text.tokenizer import Tokenizer

LOWEST = -9999.0  # for minus infinity, which JSON does not have


Label = Callable[[int], str]


def labels(tokenizer: Tokenizer, *, by_id: bool) -> Label:
    """Return what names a token: its text, or `token_id:` and its id, as vLLM does."""
    return "token_id:{}".format if by_id else partial(token_label, tokenizer)


def completion_logprobs(label: Label, placed: Sequence[PlacedLogprob]) -> dict[str, object]:
    """Return the legacy object of parallel lists; a prompt's first token has null values.

    top_logprobs includes the token itself, so it has up to `logprobs` + 1 entries.
    """
    return {
        "tokens": [label(item.token) for item in placed],
        "token_logprobs": [
            None if item.values is None else max(item.values.logprob, LOWEST) for item in placed
        ],
        "top_logprobs": [
            None if item.values is None else _top_by_label(label, item.values) for item in placed
        ],
        "text_offset": [item.offset for item in placed],
    }


def _top_by_label(label: Label, values: TokenLogprobs) -> dict[str, float]:
    tops: dict[str, float] = {}
    for token, logprob in _with_chosen(values):
        tops.setdefault(label(token), max(logprob, LOWEST))
    return tops


def _with_chosen(values: TokenLogprobs) -> Iterable[tuple[int, float]]:
    yield from zip(values.top_tokens, values.top_logprobs, strict=True)
    if values.token not in values.top_tokens:
        yield values.token, values.logprob


def token_label(tokenizer: Tokenizer, token: int) -> str:
    """Return the token's text; `bytes:\\\\xe2…` for a part of a character, as OpenAI does."""
    data = tokenizer.token_bytes(token)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def chat_logprobs(
    tokenizer: Tokenizer, placed: Sequence[PlacedLogprob], *, by_id: bool
) -> dict[str, object]:
    """Return `{"content": [...]}` with each token's text, bytes, logprob and alternatives."""
    content = []
    for item in placed:
        assert item.values is not None, "chat has no prompt logprobs"
        tops = zip(item.values.top_tokens, item.values.top_logprobs, strict=True)
        entry = _chat_entry(tokenizer, by_id, item.token, item.values.logprob)
        entry["top_logprobs"] = [_chat_entry(tokenizer, by_id, *top) for top in tops]
        content.append(entry)
    return {"content": content, "refusal": None}


def _chat_entry(tokenizer: Tokenizer, by_id: bool, token: int, logprob: float) -> dict[str, object]:
    data = tokenizer.token_bytes(token)
    return {
        "token": f"token_id:{token}" if by_id else data.decode(errors="replace"),
        "logprob": max(logprob, LOWEST),
        "bytes": list(data),
    }
