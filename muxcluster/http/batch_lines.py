"""Answers lines of a batch as the HTTP routes of their urls would."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from muxcluster.batch.service.answers import Answer, OnTokens
from muxcluster.batch.store.entry import CHAT, EMBEDDINGS, Entry
from muxcluster.batch.store.job import Use
from muxcluster.batch.store.results import answered
from muxcluster.batch.store.store import Result
from muxcluster.core.batch_part import LinePlace
from muxcluster.core.errors import EngineFailure, PoisonRequest, RequestError, Unavailable
from muxcluster.http.answers.embeddings import embeddings
from muxcluster.http.answers.responses import Deltas, whole
from muxcluster.http.answers.wire import ChatWire, CompletionWire
from muxcluster.http.calls.call import Call, RequestHead, Tokenised
from muxcluster.http.calls.choice import ChoiceDelta
from muxcluster.http.calls.embedding import VectorForm
from muxcluster.http.calls.kept_prompts import KeptPrompts
from muxcluster.http.errors import http_error
from muxcluster.http.service import CompletionService
from muxcluster.text.schemas import ChatBody, CompletionBody, EmbeddingBody, GenerationBody
from muxcluster.text.validation.body import parse

NO_LIMIT_S = 1e9  # a line may wait as long as its batch
MOST_FAILURES = 3  # losses of its unit that a line outlives
MAX_PAUSE_S = 5.0


class LineAnswerer:
    """Answers entries through `service`, as batch class."""

    def __init__(
        self, service: CompletionService, *, lenient: bool, kept: KeptPrompts | None = None
    ) -> None:
        """lenient: unknown fields pass. kept: prompts that the plan of a batch has tokenised."""
        self._service = service
        self._lenient = lenient
        self._kept = KeptPrompts() if kept is None else kept
        self.used = Use()  # tokens of all answers so far

    async def answer(
        self,
        line: int,
        entry: Entry,
        batch_id: str,
        on_tokens: OnTokens,
        place: LinePlace | None = None,
    ) -> Answer:
        counter = _TokenCounter(on_tokens)
        request_id = f"{batch_id}-{line}"
        tokenised = self._kept.take(batch_id, line)
        num_failures = 0
        while True:
            try:
                asked = body_of(entry, lenient=self._lenient)
                call = await self._call(asked, request_id, tokenised)
                body = await self._run(asked, replace(call, line=place), counter)
                use = _use(body)
                self.used += use
                result = replace(answered(line, entry.custom_id, request_id, body), use=use)
                return Answer(result, None if call.embeds else use.output // len(body["choices"]))
            except Unavailable as error:
                await asyncio.sleep(min(MAX_PAUSE_S, error.retry_after_s))
            except (RequestError, PoisonRequest) as error:
                return Answer(_failed(line, entry, request_id, error), None)
            except EngineFailure as error:
                num_failures += 1
                if num_failures == MOST_FAILURES:
                    return Answer(_failed(line, entry, request_id, error), None)

    async def _call(
        self, body: GenerationBody | EmbeddingBody, request_id: str, tokenised: Tokenised | None
    ) -> Call:
        head = RequestHead(request_id)
        if isinstance(body, EmbeddingBody):
            call = await self._service.prepare_embeddings(body, head, tokenised)
            return replace(call, timeout_s=NO_LIMIT_S, most_at_once=None)
        call = await self._service.prepare(body, head, tokenised)
        return replace(call, timeout_s=NO_LIMIT_S)

    async def _run(
        self, body: GenerationBody | EmbeddingBody, call: Call, counter: "_TokenCounter"
    ) -> dict[str, Any]:
        with call.admission:
            deltas = counter.of(self._service.stream(call))
            if isinstance(body, EmbeddingBody):
                return await embeddings(call, deltas, VectorForm.of(body, call.model))
            wire = ChatWire(call) if isinstance(body, ChatBody) else CompletionWire(call)
            return await whole(call, deltas, wire)


class _TokenCounter:
    """Reports the number of tokens of a line's stream as they come."""

    def __init__(self, on_tokens: OnTokens) -> None:
        self._on_tokens = on_tokens
        self._has_begun = False

    async def of(self, deltas: Deltas) -> AsyncGenerator[ChoiceDelta, None]:
        num_tokens = 0
        async with aclosing(deltas):
            async for delta in deltas:
                num_tokens += len(delta.tokens)
                self._on_tokens(num_tokens, is_first=not self._has_begun)
                self._has_begun = True
                yield delta


def body_of(entry: Entry, *, lenient: bool) -> GenerationBody | EmbeddingBody:
    """Return the entry's checked body, as batch class. Raises RequestError."""
    fields = {**entry.body, "service_tier": "flex"}
    if entry.url == EMBEDDINGS:
        return parse(EmbeddingBody, fields, lenient=lenient)
    schema = ChatBody if entry.url == CHAT else CompletionBody
    return parse(schema, fields, lenient=lenient)


def _use(body: dict[str, Any]) -> Use:
    usage = body["usage"]
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    return Use(usage["prompt_tokens"], cached, usage["completion_tokens"])


def _failed(line: int, entry: Entry, request_id: str, error: Exception) -> Result:
    found = http_error(error)
    body = json.loads(found.body())
    return answered(line, entry.custom_id, request_id, body, found.status)
