"""Parses a line of a batch file in OpenAI's format."""

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from muxcluster.core.errors import InvalidJson, InvalidValue, MissingParameter, UnsupportedParameter
from muxcluster.core.inputs.json_text import parse_json

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
EMBEDDINGS = "/v1/embeddings"
ENDPOINTS = (CHAT, COMPLETIONS, EMBEDDINGS)
MAX_ID_CHARS = 512
_DEFAULT_OUTPUT, _MOST_OUTPUT = 256, 2**20


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """The request of a line. body: OpenAI's fields, of which only `model` is checked."""

    custom_id: str
    url: str
    body: Mapping[str, Any]

    @property
    def model(self) -> str:
        name: str = self.body["model"]
        return name


def parse_entry(data: bytes, endpoint: str | None = None) -> Entry:
    """Return the request of a line. endpoint: the only allowed url; None: any of `ENDPOINTS`.

    Raises InvalidJson, MissingParameter, InvalidValue or UnsupportedParameter with the field.
    """
    if not data.strip():
        raise InvalidJson("the line is empty")
    fields = parse_json(data, "the line")
    if not isinstance(fields, dict):
        raise InvalidValue("expected a JSON object")
    custom_id = _text(fields, "custom_id")
    if len(custom_id) > MAX_ID_CHARS:
        raise InvalidValue(f"custom_id has more than {MAX_ID_CHARS} characters", "custom_id")
    if fields.get("method") != "POST":
        raise InvalidValue(f"method: expected POST, found {fields.get('method')!r:.40}", "method")
    url, known = _text(fields, "url"), (endpoint,) if endpoint else ENDPOINTS
    if url not in known:
        raise InvalidValue(f"url: expected {' or '.join(known)}, found {url!r:.60}", "url")
    body = fields.get("body")
    if not isinstance(body, dict):
        raise InvalidValue(f"body: expected a JSON object, found {body!r:.40}", "body")
    _text(body, "model", "body.")
    if body.get("stream"):
        raise UnsupportedParameter("body.stream: a batch is not streamed", "body.stream")
    return Entry(custom_id, url, body)


def _text(fields: Mapping[str, Any], name: str, where: str = "") -> str:
    if fields.get(name) is None:
        raise MissingParameter(f"missing required field {where}{name}", f"{where}{name}")
    value = fields[name]
    if not isinstance(value, str) or not value:
        raise InvalidValue(f"{where}{name}: expected text, found {value!r:.40}", f"{where}{name}")
    return value


def output_guess(entry: Entry) -> int:
    """Return the output tokens that the request may have: its limit, if any, else a guess."""
    if entry.url == EMBEDDINGS:
        return 1
    for name in ("max_completion_tokens", "max_tokens"):
        value = entry.body.get(name)
        if type(value) is int and value > 0:
            return min(value, _MOST_OUTPUT)
    return _DEFAULT_OUTPUT


def custom_id_of(data: bytes | None) -> str | None:
    """Return the custom_id of a line that is otherwise wrong, if it has one."""
    try:
        fields = parse_json(data or b"", "the line")
    except InvalidJson:
        return None
    name = fields.get("custom_id") if isinstance(fields, dict) else None
    return name if isinstance(name, str) and len(name) <= MAX_ID_CHARS else None


# Characters of a prompt whose digests make its family: prompts that begin alike are neighbours
# when lines are sorted by it, those that agree for longer nearer
_FAMILY_CHARS = (64, 256, 1024)
_DIGEST_BYTES = 4  # of each
FAMILY_BYTES = _DIGEST_BYTES * len(_FAMILY_CHARS)


def family_of(entry: Entry) -> bytes:
    """Return a key by which requests with like prompts are neighbours; nothing is tokenised."""
    text = _beginning(entry.body)
    return b"".join(
        blake2b(text[:most].encode(errors="replace"), digest_size=_DIGEST_BYTES).digest()
        for most in _FAMILY_CHARS
    )


def _beginning(body: Mapping[str, Any]) -> str:
    """Return the first characters of the prompt, whatever it is."""
    most = _FAMILY_CHARS[-1]
    names = (name for name in ("prompt", "messages", "input") if name in body)
    prompt = body.get(next(names, ""))
    if isinstance(prompt, str):
        return prompt[:most]
    if not isinstance(prompt, list):
        return ""
    text = ""
    for part in prompt:
        if len(text) >= most:
            break
        content = part.get("content") if isinstance(part, dict) else part
        text += f"{content if isinstance(content, str | int) else str(content)[:most]} "
    return text[:most]
