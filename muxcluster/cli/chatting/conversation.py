"""A conversation with one model of a running server: messages out, streamed text back."""

import http.client
import json
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from muxcluster.cli.terminal.asking import answer_of, bearer
from muxcluster.core.errors import ConfigError, EngineFailure, Unavailable
from muxcluster.core.inputs.web_url import checked_url
from muxcluster.placement.names import nearest

_DATA = b"data: "
_END = b"[DONE]"
_BROKEN = (OSError, http.client.HTTPException)
_NOT_OURS = (ValueError, LookupError, TypeError, AttributeError)  # of answers of another form


@dataclass(frozen=True, slots=True)
class Server:
    """Where a conversation is held."""

    url: str  # without /v1
    api_key: str | None
    timeout_s: float  # until the first byte of an answer, and between two

    @classmethod
    def at(cls, url: str, api_key: str | None, timeout_s: float) -> "Server":
        """url: with or without `/v1`. Raises ConfigError if it is not a URL."""
        checked_url(url)
        return cls(url.rstrip("/").removesuffix("/v1"), api_key, timeout_s)

    def check_serves(self, model: str) -> None:
        """Raise ConfigError, naming the nearest model, if this one is not served; Unavailable."""
        with self.open("models", None) as answer:
            try:
                names = [each["id"] for each in json.loads(answer.read())["data"]]
            except (
                OSError,
                ValueError,
                LookupError,
                TypeError,
                http.client.HTTPException,
            ) as error:
                raise Unavailable(f"{self.url} does not list its models") from error
        if model not in names:
            raise ConfigError(self.url, "", f"no model {model!r}{nearest(model, names)}")

    def open(self, path: str, body: dict[str, Any] | None) -> http.client.HTTPResponse:
        """Return the open answer. Raises ConfigError if the request is refused; Unavailable."""
        data = None if body is None else json.dumps(body).encode()
        return answer_of(self.url, path, data, bearer(self.api_key), self.timeout_s)


class Conversation:
    """Messages so far, and the next answer.

    A question that got no answer at all is forgotten; an answer that was cut short is kept.
    """

    def __init__(self, server: Server, model: str, system: str, options: dict[str, Any]) -> None:
        """system: the system message, "" for none; options: further fields of each request."""
        self._server = server
        self._request = {"model": model, "stream": True, **options}
        self._system = [{"role": "system", "content": system}] if system else []
        self.messages: list[dict[str, str]] = []
        self.finish_reason: str | None = None  # of the last answer; None if it was cut short

    def forget(self) -> None:
        """Begin anew, with the system message alone."""
        self.messages = []

    def ask(self, text: str) -> Generator[str]:
        """Yield the answer as it comes; closing the iterator cancels the request.

        Reasoning comes before it, set off by an empty line; later requests do not hold it. Raises
        ConfigError if the request is refused; Unavailable, EngineFailure if it fails.
        """
        asked = [*self.messages, {"role": "user", "content": text}]
        body = {**self._request, "messages": [*self._system, *asked]}
        self.finish_reason = None
        said, is_reasoning = "", False
        with closing(self._server.open("chat/completions", body)) as answer:
            try:
                for choice in self._choices(answer):
                    self.finish_reason = choice.get("finish_reason") or self.finish_reason
                    delta = choice.get("delta") or {}
                    if thought := _text(delta, "reasoning_content"):
                        is_reasoning = True
                        yield thought
                    if piece := _text(delta, "content"):
                        said += piece
                        yield f"\n\n{piece}" if is_reasoning else piece
                        is_reasoning = False
            finally:
                if said or self.finish_reason:
                    self.messages = [*asked, {"role": "assistant", "content": said}]

    def _choices(self, answer: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
        """Yield the choice of each event. Raises EngineFailure for an error among them."""
        url = self._server.url
        try:
            for line in answer:
                if not line.startswith(_DATA):
                    continue
                data = line.removeprefix(_DATA).strip()
                if data == _END:
                    return
                event = json.loads(data)
                if "error" in event:
                    raise EngineFailure(f"{url}: {event['error']['message']}")
                yield from event["choices"][:1]
        except _BROKEN as error:
            raise Unavailable(f"{url} broke off in the middle of an answer: {error}") from error
        except _NOT_OURS as error:
            raise Unavailable(f"{url} does not stream answers as OpenAI's API does") from error
        raise Unavailable(f"{url} broke off in the middle of an answer")


def _text(delta: dict[str, Any], name: str) -> str:
    """Return a field of a delta, "" if it is not there."""
    value = delta.get(name)
    return value if isinstance(value, str) else ""
