"""The path of a call, from HTTP or Python: check, tokenise, generate n choices, detokenise."""

import asyncio
import logging
import math
import secrets
import time
import uuid
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import aclosing, nullcontext
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from muxcluster.core.errors import (
    EngineFailure,
    InvalidValue,
    MuxClusterError,
    NotReady,
    Overloaded,
    UnsupportedParameter,
)
from muxcluster.core.inputs.images.prompt_image import PromptImage
from muxcluster.core.request import ServiceClass
from muxcluster.core.residency import WeightOrder
from muxcluster.core.sampling import Constraint
from muxcluster.core.served import ServedModel
from muxcluster.http.calls.admission import Admission, Gate
from muxcluster.http.calls.call import Call, Prompt, RequestHead, Tokenised
from muxcluster.http.calls.call_stream import CallStream
from muxcluster.http.calls.choice import ChoiceDelta, ChoiceText, one_by_one
from muxcluster.http.calls.embedding import (
    MOST_AT_ONCE,
    SAMPLING,
    VectorForm,
    check_generates,
    embedding_prompts,
    texts_of,
)
from muxcluster.http.calls.model_text import ModelText, ModelTexts, off_loop
from muxcluster.http.calls.output import constrained, output_rules
from muxcluster.http.calls.pictures import PictureReader, check_choices
from muxcluster.http.errors import rejection
from muxcluster.http.metrics.record import RequestRecord
from muxcluster.http.metrics.requests import Metrics
from muxcluster.http.settings import ApiSettings
from muxcluster.router.backend import Backend
from muxcluster.text.images.decoding import Picture
from muxcluster.text.images.placing import placed
from muxcluster.text.schemas import (
    ChatBody,
    CompletionBody,
    EmbeddingBody,
    GenerationBody,
    TextsBody,
)
from muxcluster.text.tools.asked import AskedTools, asked_tools, num_schema_chars
from muxcluster.text.tools.output import OutputRules
from muxcluster.text.validation.body import parse
from muxcluster.text.validation.constraints import constraint_of, has_constraint
from muxcluster.text.validation.prompts import chat_messages, split_prompts, token_ids
from muxcluster.text.validation.sampling import (
    asked_max_tokens,
    check_stream_options,
    max_tokens_for,
    sampling_params,
    service_class,
    slo,
)

MAX_CALL_CHOICES = 2048
HELD_RETRY_S = 60  # a model that an operator holds back: nobody knows for how long
logger = logging.getLogger(__name__)

MOST_COUNTING = 64
COUNTING_RETRY_S = 1
_TEXT_CHARS = 32  # as many characters cost what each text costs beside its own


class CompletionService:
    """Turns request bodies into streams of `ChoiceDelta`. No HTTP in it."""

    def __init__(
        self, backend: Backend, texts: ModelTexts, metrics: Metrics, settings: ApiSettings
    ) -> None:
        self._backend = backend
        self._texts = texts
        self._metrics = metrics
        self._settings = settings
        self._gate = Gate(settings.queues)
        self._pictures = PictureReader()
        self._num_counting = 0  # requests that only count tokens
        self._wakes: set[asyncio.Task[None]] = set()

    def generate(
        self, fields: Mapping[str, object], *, request_id: str | None = None
    ) -> AsyncGenerator[ChoiceDelta, None]:
        """Answer a Python call with OpenAI's fields: with `messages` a chat, else a completion.

        The first delta raises RequestError, Unavailable, EngineFailure or RequestTimeout. Closing
        the generator aborts. Text is as the model writes it, with its reasoning and its tool calls.
        """
        return self._generate(fields, request_id)

    async def _generate(
        self, fields: Mapping[str, object], request_id: str | None
    ) -> AsyncGenerator[ChoiceDelta, None]:
        schema = ChatBody if "messages" in fields else CompletionBody
        body: GenerationBody = parse(schema, fields, lenient=self._settings.lenient)
        call = await self.prepare(body, RequestHead(request_id or uuid.uuid4().hex))
        call = replace(call, output=None)
        # no await until `stream` has it: nothing can end between the two
        async with aclosing(self.stream(call)) as deltas:
            async for delta in deltas:
                yield delta

    async def prepare(
        self, body: GenerationBody, head: RequestHead, tokenised: Tokenised | None = None
    ) -> Call:
        """Check `body`, admit it to the queue and tokenise it, without asking the engine.

        tokenised: the prompts of `body`; those of a model that was replaced are not used. The
        caller streams the call or releases its admission. Raises RequestError, and Overloaded if a
        limit of its key is reached or the model's queue is full.
        """
        check_stream_options(body)
        model = self._permitted(body, head)
        check_generates(model)
        asked = await self._tools(body)
        sampling = sampling_params(body, model.served, seed=secrets.randbits(63))
        targets = slo(body.slo, model.served.slo)
        num_choices = (body.n or 1) * num_prompts(body)
        if num_choices > MAX_CALL_CHOICES:
            raise InvalidValue(f"at most {MAX_CALL_CHOICES} choices in one request", "n")
        admission = self._admit(model.served, service_class(body), num_choices)
        try:
            sampling = replace(sampling, constraint=await self._constraint(body))
            if tokenised is None or tokenised.model is not model:
                tokenised = Tokenised(model, tuple(await self._prompts(body, model, asked)))
            for prompt in tokenised.prompts:
                check_choices(prompt.images, body.n or 1)
            rules = _rules(body, model, asked, tokenised)
            if rules is not None:
                sampling = constrained(sampling, model, asked, rules)
            num_output = (body.n or 1) * sum(each.max_tokens for each in tokenised.prompts)
            await _reserve(head, tokenised, num_output)
        except BaseException:
            admission.release()
            raise
        call_id = body.request_id or head.request_id
        return Call(
            call_id=f"chatcmpl-{call_id}" if isinstance(body, ChatBody) else f"cmpl-{call_id}",
            engine_id=f"{call_id}-{uuid.uuid4().hex[:12]}",
            model=model,
            prompts=tokenised.prompts,
            n=body.n or 1,
            sampling=sampling,
            head=head,
            admission=admission,
            timeout_s=self.time_limit_s(head),
            stop=tuple(body.stop or ()),
            include_stop=bool(body.include_stop_str_in_output),
            skip_special_tokens=body.skip_special_tokens is not False,
            echo=isinstance(body, CompletionBody) and bool(body.echo),
            returns_token_ids=bool(body.return_token_ids),
            labels_tokens_by_id=bool(body.return_tokens_as_token_ids),
            service_class=service_class(body),
            slo=targets,
            priority=body.priority or 0,
            cache_salt=body.cache_salt or "",
            output=rules if rules is not None and rules.has_effect else None,
        )

    def _permitted(self, body: GenerationBody | TextsBody, head: RequestHead) -> ModelText:
        """Return the body's model. Raises RequestError if it is not served, or not for the key."""
        model = self._texts.find(body.model, head.models)
        if head.meter is not None:
            head.meter.check_class(service_class(body))
        return model

    async def prepare_embeddings(
        self, body: TextsBody, head: RequestHead, tokenised: Tokenised | None = None
    ) -> Call:
        """As `prepare`, for the vectors of texts; a call takes few places of a queue at a time."""
        model = self._permitted(body, head)
        texts = texts_of(body, model)
        if isinstance(body, EmbeddingBody):
            VectorForm.of(body, model)  # a wrong one takes nothing from the limits of its key
        of_class = service_class(body)
        most = min(len(texts), MOST_AT_ONCE, self._settings.queues.of(of_class))
        admission = self._admit(model.served, of_class, most)
        try:
            if tokenised is None or tokenised.model is not model:
                work = partial(embedding_prompts, body, model, texts)
                num_chars = sum(text.length + _TEXT_CHARS for text in texts)
                prompts = await off_loop(work, num_chars, self._settings.inline_chars)
                tokenised = Tokenised(model, prompts)
            targets = slo(body.slo, model.served.slo)
            await _reserve(head, tokenised)
        except BaseException:
            admission.release()
            raise
        call_id = body.request_id or head.request_id
        return Call(
            call_id=f"embd-{call_id}",
            engine_id=f"{call_id}-{uuid.uuid4().hex[:12]}",
            model=model,
            prompts=tokenised.prompts,
            n=1,
            sampling=SAMPLING,
            head=head,
            admission=admission,
            timeout_s=self.time_limit_s(head),
            service_class=of_class,
            slo=targets,
            priority=body.priority or 0,
            cache_salt=body.cache_salt or "",
            embeds=True,
            most_at_once=most,
        )

    def time_limit_s(self, head: RequestHead) -> float:
        """Return how long a call may take: the client's limit or the server's, the shorter one."""
        limit_s = self._settings.request_timeout_s
        return limit_s if head.timeout_s is None else min(limit_s, head.timeout_s)

    async def count_tokens(self, body: ChatBody, models: Collection[str] | None = None) -> int:
        """Return how many tokens the prompt of a chat has, also if they do not fit the context.

        models: as of `ModelTexts.find`. Raises RequestError, and Overloaded where many are counted
        at once: limits of keys do not hold these back, and a model's template renders one chat at a
        time.
        """
        model = self._texts.find(body.model, models)
        if self._num_counting >= MOST_COUNTING:
            message = f"{self._num_counting} requests are having their tokens counted"
            raise Overloaded(message, COUNTING_RETRY_S)
        self._num_counting += 1
        try:
            messages = chat_messages(body.messages)
            text = await model.render_async(body, messages, await self._tools(body))
            special = bool(body.add_special_tokens)
            work = partial(model.encode, text, add_special_tokens=special)
            return len(await off_loop(work, len(text), self._settings.inline_chars))
        finally:
            self._num_counting -= 1

    async def _tools(self, body: GenerationBody) -> AskedTools | None:
        """Return the body's tools; large ones are checked on a thread."""
        if not isinstance(body, ChatBody):
            return None
        num_chars = num_schema_chars(body.tools)
        return await off_loop(partial(_asked, body), num_chars, self._settings.inline_chars)

    async def _constraint(self, body: GenerationBody) -> Constraint | None:
        """Return the constraint of a body, made on a thread: checking a schema takes long."""
        return await asyncio.to_thread(constraint_of, body) if has_constraint(body) else None

    async def _prompts(
        self, body: GenerationBody, model: ModelText, asked: AskedTools | None
    ) -> Sequence[Prompt]:
        """Tokenise the body's prompts; long ones on a thread."""
        inline = self._settings.inline_chars
        if isinstance(body, ChatBody):
            parts = model.image_parts(self._settings.images)
            messages = chat_messages(body.messages, parts)
            text = await model.render_async(body, messages, asked)
            pictures = await self._pictures.read(parts, model.images)
            work = partial(_chat_prompt, body, model, text, pictures)
            return [await off_loop(work, len(text), inline)]
        assert isinstance(body, CompletionBody)
        items = split_prompts(body.prompt)
        prompts = partial(_completion_prompts, body, model, items)
        return await off_loop(prompts, sum(map(len, items)), inline)

    def stream(self, call: Call) -> CallStream:
        """Stream the deltas of all choices. Raises what the backend raises, or RequestTimeout."""
        self._metrics.call_started(call)
        return CallStream(call, self._choice)

    def _admit(
        self, model: ServedModel, service_class: ServiceClass, num_requests: int
    ) -> Admission:
        """Admit a call's requests to their queue. Raises Overloaded, and counts that."""
        try:
            return self._gate.admit(model.unit_model, service_class, num_requests)
        except Overloaded:
            self._metrics.count("admission_rejections", model.name, num_requests)
            self._metrics.recent.refuse(model.name, num_requests, time.monotonic())
            raise

    async def _choice(self, call: Call, index: int) -> AsyncGenerator[ChoiceDelta, None]:
        """Stream one choice; a stop string, an error or closing aborts its request."""
        text = ChoiceText(call, index)
        place = nullcontext() if call.runs_in_turns else call.admission.place(index)
        with place, RequestRecord(self._metrics, call, index) as record:
            if text.needs_no_tokens:
                update = text.echo_only()
                record.advance(update, None)
                yield update
                return
            self._check_weights(call)
            async with aclosing(self._backend.generate(call.request(index))) as tokens:
                async for delta in tokens:
                    if delta.rejected is not None:
                        raise rejection(delta.rejected)
                    # several tokens that came at once are still an event each
                    parts = one_by_one(delta) if call.tells_tokens_apart else (delta,)
                    for part in parts:
                        update = text.advance(part)
                        if update.tokens:
                            call.admission.start(index)
                        record.advance(update, part.finished)
                        if text.finished:
                            yield replace(update, time=record.time())
                            return
                        yield update
            raise EngineFailure("the token stream ended before the request did")

    def _check_weights(self, call: Call) -> None:
        """Raise NotReady where the call's time is over before its model can be resident.

        Its weights are asked for all the same: when the client comes again they should be there.
        """
        name = call.model.served.unit_model
        found = self._backend.model_stats(name)
        if not found:
            return  # nothing is known; the backend says whether it takes requests
        awake = {unit: each for unit, each in found.items() if each.order != WeightOrder.HOLD}
        if not awake:
            message = f"{name} is parked until an operator wakes it"
            raise NotReady(message, HELD_RETRY_S, "model_held")
        unit, nearest = min(awake.items(), key=lambda each: each[1].expected_wait_s)
        wait_s, left_s = nearest.expected_wait_s, call.deadline_s - time.monotonic()
        if 0.0 < left_s < wait_s:
            if nearest.order != WeightOrder.WAKE:
                self._wake(name, unit)
            message = f"the weights of {name} are expected in {wait_s:.1f} s, after the time limit"
            raise NotReady(message, math.ceil(wait_s), "model_parked")

    def _wake(self, model: str, unit_id: str) -> None:
        """Ask a unit for a model's weights, without waiting for them."""
        task = asyncio.create_task(self._ask_for(model, unit_id))
        self._wakes.add(task)  # the event loop itself keeps no task alive
        task.add_done_callback(self._wakes.discard)

    async def _ask_for(self, model: str, unit_id: str) -> None:
        try:
            await self._backend.request_move(model, WeightOrder.EXPECT, unit_id)
        except MuxClusterError as error:
            logger.info("%s is not woken: %s", model, error)


def tokenise(body: GenerationBody | EmbeddingBody, model: ModelText) -> Tokenised:
    """Return the body's prompts, tokenised on this thread. Raises RequestError."""
    if isinstance(body, EmbeddingBody):
        return Tokenised(model, embedding_prompts(body, model, texts_of(body, model)))
    check_generates(model)
    if isinstance(body, ChatBody):
        text = model.render(body, chat_messages(body.messages), _asked(body))
        return Tokenised(model, (_chat_prompt(body, model, text),))
    assert isinstance(body, CompletionBody)
    prompts = _completion_prompts(body, model, split_prompts(body.prompt))
    return Tokenised(model, tuple(prompts))


async def _reserve(head: RequestHead, tokenised: Tokenised, num_output_tokens: int = 0) -> None:
    """Take a call's tokens from the limits of its key. Raises Overloaded over one.

    num_output_tokens: the most that it may have.
    """
    if head.meter is not None:
        model = tokenised.model.served.name
        await head.meter.reserve(model, tokenised.num_tokens, num_output_tokens)


def _asked(body: ChatBody) -> AskedTools | None:
    may_repeat = body.parallel_tool_calls is not False
    return asked_tools(body.tools, body.tool_choice, may_repeat=may_repeat)


def _rules(
    body: GenerationBody, model: ModelText, asked: AskedTools | None, tokenised: Tokenised
) -> OutputRules | None:
    """Return how a chat's outputs are divided; None for completions, whose outputs are not."""
    if not isinstance(body, ChatBody):
        return None
    return output_rules(body, model, asked, tokenised.prompts[0].tokens)


def num_prompts(body: GenerationBody) -> int:
    """Return how many prompts `body` has, without tokenising. Raises RequestError for none."""
    return len(split_prompts(body.prompt)) if isinstance(body, CompletionBody) else 1


def _chat_prompt(
    body: ChatBody, model: ModelText, text: str, pictures: Sequence[Picture] = ()
) -> Prompt:
    tokens = model.encode(text, add_special_tokens=bool(body.add_special_tokens))
    images: tuple[PromptImage, ...] = ()
    if model.images is not None:
        tokens, images = placed(tokens, pictures, model.images.token_id)
    if images and body.truncate_prompt_tokens is not None:
        param = "truncate_prompt_tokens"
        raise UnsupportedParameter(f"{param} is not supported with images", param)
    tokens = _kept(tokens, body, model)
    if len(tokens) == 0:
        raise InvalidValue("the messages render to an empty prompt", "messages")
    return Prompt("", tokens, max_tokens_for(body, model.served, len(tokens)), images)


def _completion_prompts(
    body: CompletionBody, model: ModelText, items: Sequence[str | list[int]]
) -> list[Prompt]:
    add_special_tokens = body.add_special_tokens is not False
    prompts = []
    for item in items:
        if isinstance(item, str):
            model.check_length(item, "prompt")
            whole = model.encode(item, add_special_tokens=add_special_tokens)
        else:
            whole = token_ids(item, model.served.vocab_size, "prompt")
        tokens = _kept(whole, body, model)
        if len(tokens) == 0:
            raise InvalidValue("the prompt is empty", "prompt")
        sent = item if isinstance(item, str) and tokens is whole else None
        text = _echoed(body, model, tokens, sent)
        prompts.append(Prompt(text, tokens, max_tokens_for(body, model.served, len(tokens))))
    return prompts


def _kept(tokens: NDArray[np.int32], body: GenerationBody, model: ModelText) -> NDArray[np.int32]:
    """Return the last tokens of a prompt, int32 [n], as many as `truncate_prompt_tokens` says.

    -1: as many as the context has room for beside the output. Raises InvalidValue for 0.
    """
    most = body.truncate_prompt_tokens
    if most == 0:
        param = "truncate_prompt_tokens"
        raise InvalidValue(f"{param} must be positive, or -1 for all that fit", param)
    if most == -1:
        most = max(1, model.served.max_model_len - max(1, asked_max_tokens(body)[0] or 0))
    return tokens if most is None or len(tokens) <= most else tokens[-most:]


def _echoed(
    body: CompletionBody, model: ModelText, tokens: NDArray[np.int32], sent: str | None
) -> str:
    """Return the text of a prompt for `echo`, else nothing. sent: the text, if all of it came."""
    if not body.echo:
        return ""
    if sent is not None:
        return sent
    return model.tokenizer.decode(tokens.tolist(), body.skip_special_tokens is not False)
