"""Turns one choice's tokens into text: detokenise, cut at stop strings, divide, place logprobs."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice

from muxcluster.core.errors import ConstraintFailed, EngineFailure, NonFiniteLogits, PoisonRequest
from muxcluster.core.events import Finished, FinishReason, TokenDelta
from muxcluster.core.job import TokenLogprobs
from muxcluster.http.calls.account import EngineTime
from muxcluster.http.calls.call import Call
from muxcluster.text.detokenizer import Detokenizer
from muxcluster.text.stop import StopMatcher
from muxcluster.text.tools.output import OutputParser
from muxcluster.text.tools.parts import Content, Part

# prompt tokens the detokeniser reads first, as the text of a token depends on its neighbours
CONTEXT_TOKENS = 6
TOOL_CALLS = "tool_calls"  # the finish_reason of an output that ends itself and has calls


@dataclass(frozen=True, slots=True)
class PlacedLogprob:
    """Log-probabilities of a token and its place in the choice's text."""

    token: int
    offset: int  # of its first character
    values: TokenLogprobs | None  # None for a prompt's first token, which nothing predicts


@dataclass(frozen=True, slots=True)
class ChoiceDelta:
    """New output of one choice; the last delta has a finish_reason."""

    index: int  # of the choice
    text: str = ""  # of the answer, without reasoning and tool calls
    tokens: tuple[int, ...] = ()  # new ones
    logprobs: tuple[PlacedLogprob, ...] = ()
    finish_reason: str | None = None  # "stop", "length" or "tool_calls"
    stop_reason: str | int | None = None  # the stop string or token id that ended it
    num_output_tokens: int = 0  # so far, without surplus tokens
    num_cached_tokens: int = 0  # prompt tokens from the prefix cache; in the last delta
    # num_drafted, num_accepted: draft tokens, and those of them in the output; in the last delta
    num_drafted: int = 0
    num_accepted: int = 0
    time: EngineTime | None = None  # in the last delta
    # the part of `text` of each token, if several came at once and have no logprobs; else empty
    pieces: tuple[str, ...] = ()
    # all new parts, that of `text` among them, if there are others than content; else empty
    parts: tuple[Part, ...] = ()
    num_reasoning_tokens: int | None = None  # so far; None if the model writes no reasoning
    vector: bytes = b""  # of an embedding model, as the engine computes it: float32


class ChoiceText:
    """The state of one choice. `advance` is called for each delta until `finished`."""

    def __init__(self, call: Call, index: int) -> None:
        self._call = call
        self._prompt = call.prompt_of(index)
        self._index = index
        context = self._prompt.tokens[-CONTEXT_TOKENS:].tolist()
        kept = frozenset() if call.output is None else call.output.kept_tokens
        self._decoder = Detokenizer(call.model.tokenizer, call.skip_special_tokens, context, kept)
        self._parser = None if call.output is None else OutputParser(call.output)
        self._parts: list[Part] = []  # of the present delta
        self._may_reason = call.output is not None and call.output.tags is not None
        self._num_reasoning = 0
        self._stops = StopMatcher(call.stop, call.include_stop)
        self._echo_pending = call.echo
        self._prompt_logprobs: list[TokenLogprobs] = []
        self._waiting: deque[PlacedLogprob] = deque()
        self._num_decoded = len(self._prompt.text) if call.echo else 0
        self._num_shown = 0
        self._num_tokens = 0
        self.finished = False

    @property
    def needs_no_tokens(self) -> bool:
        """True for a choice that only echoes its prompt: `echo_only` is its whole output."""
        is_computed = self._call.embeds or self._call.sampling.prompt_logprobs is not None
        return self._prompt.max_tokens == 0 and not is_computed

    def advance(self, delta: TokenDelta) -> ChoiceDelta:
        """Return the text that `delta` adds.

        Raises EngineFailure if the engine gave the request up.
        """
        self._prompt_logprobs.extend(delta.prompt_logprobs)
        end = delta.finished
        if end is not None and end.reason in (FinishReason.ERROR, FinishReason.ABORT):
            raise _failure(end)
        if not delta.tokens and end is None:
            return ChoiceDelta(self._index)
        echo = self._echo() if self._echo_pending else ""
        first = self._num_tokens
        pieces = self._decode(delta) if self._prompt.max_tokens > 0 else [""]
        pieces[0] = echo + pieces[0]
        if end is not None and self._stops.matched is None:
            flushed = self._flush()
            self._divide(flushed)
            pieces[-1] += flushed
        self.finished = end is not None or self._stops.matched is not None or self._has_enough
        self._num_shown += sum(map(len, pieces))
        if self._parser is not None:
            pieces = self._contents(self._parser)
        update = self._delta(pieces, delta.tokens[: self._num_tokens - first], end)
        return replace(update, vector=delta.vector) if delta.vector else update

    @property
    def _has_enough(self) -> bool:
        """True once a call is complete and the request wants no second one."""
        return self._parser is not None and self._parser.is_over

    def _divide(self, piece: str) -> None:
        """Add the parts of a piece of text."""
        if self._parser is not None:
            self._parts += self._parser.push(piece)

    def _contents(self, parser: OutputParser) -> list[str]:
        """Return the pieces of content among the parts of this delta; not empty."""
        if self.finished:
            self._parts += parser.finish()
        return [part.text for part in self._parts if isinstance(part, Content)] or [""]

    def echo_only(self) -> ChoiceDelta:
        """Return the output of a choice that only echoes its prompt."""
        self.finished = True
        return ChoiceDelta(self._index, self._echo(), finish_reason=FinishReason.LENGTH.value)

    def _decode(self, delta: TokenDelta) -> list[str]:
        """Return the text that each of the delta's tokens adds, up to a stop; not empty."""
        pieces = []
        for i, token in enumerate(delta.tokens):
            if delta.logprobs and self._call.sampling.logprobs is not None:
                self._waiting.append(PlacedLogprob(token, self._num_decoded, delta.logprobs[i]))
            self._num_tokens += 1
            if self._is_stop_token(token, delta.finished) and not self._call.include_stop:
                pieces.append("")
                break
            piece = self._decoder.push([token])
            self._num_decoded += len(piece)
            # min_tokens binds stop strings too, as in vLLM
            pieces.append(piece if self._is_below_minimum() else self._stops.push(piece))
            was_reasoning = self._is_reasoning
            self._divide(pieces[-1])
            self._num_reasoning += was_reasoning or self._is_reasoning
            if self._stops.matched is not None or self._has_enough:
                break
        return pieces or [""]

    @property
    def _is_reasoning(self) -> bool:
        return self._parser is not None and self._parser.is_reasoning

    def _is_below_minimum(self) -> bool:
        return self._num_tokens <= self._call.sampling.min_tokens

    def _is_stop_token(self, token: int, end: Finished | None) -> bool:
        return end is not None and end.reason is FinishReason.STOP and token == end.stop_token

    def _flush(self) -> str:
        """Return what the decoder and the stop matcher held back, at the end."""
        text = self._stops.push(self._decoder.finish())
        return text + self._stops.finish() if self._stops.matched is None else text

    def _echo(self) -> str:
        """Return the prompt's text; place its logprobs before those of the output."""
        self._echo_pending = False
        if self._call.sampling.prompt_logprobs is not None:
            self._waiting.extend(self._prompt_placed())
        return self._prompt.text

    def _prompt_placed(self) -> list[PlacedLogprob]:
        decoder = Detokenizer(self._call.model.tokenizer, self._call.skip_special_tokens)
        placed, offset, end = [], 0, len(self._prompt.text)
        for i, token in enumerate(self._prompt.tokens.tolist()):
            # the engine's entry i - 1 describes token i; nothing predicts the first
            values = self._prompt_logprobs[i - 1] if 0 < i <= len(self._prompt_logprobs) else None
            placed.append(PlacedLogprob(token, offset, values))
            offset = min(end, offset + len(decoder.push([token])))
        return placed

    def _delta(
        self, pieces: list[str], tokens: tuple[int, ...], end: Finished | None
    ) -> ChoiceDelta:
        reason, stop_reason = self._finish(end)
        parts, self._parts = tuple(self._parts), []
        if all(isinstance(part, Content) for part in parts):
            parts = ()
        is_plain = len(pieces) > 1 and self._call.sampling.logprobs is None and not parts
        return ChoiceDelta(
            index=self._index,
            text="".join(pieces),
            pieces=tuple(pieces) if is_plain else (),
            tokens=tokens,
            logprobs=self._release(),
            finish_reason=reason,
            stop_reason=stop_reason,
            num_output_tokens=self._num_tokens,
            num_cached_tokens=end.num_cached_tokens if end is not None else 0,
            num_drafted=end.num_drafted if end is not None else 0,
            num_accepted=end.num_accepted if end is not None else 0,
            parts=parts,
            num_reasoning_tokens=self._num_reasoning if self._may_reason else None,
        )

    def _finish(self, end: Finished | None) -> tuple[str | None, str | int | None]:
        has_calls = self._parser is not None and self._parser.num_calls > 0
        if self._stops.matched is not None:
            return TOOL_CALLS if has_calls else FinishReason.STOP.value, self._stops.matched
        if self._has_enough:
            return TOOL_CALLS, None
        if end is None:
            return None, None
        if self._prompt.max_tokens == 0:
            return FinishReason.LENGTH.value, None
        is_extra = end.stop_token in self._call.sampling.stop_token_ids
        ends_itself = has_calls and end.reason is FinishReason.STOP
        reason = TOOL_CALLS if ends_itself else end.reason.value
        return reason, end.stop_token if is_extra else None

    def _release(self) -> tuple[PlacedLogprob, ...]:
        """Return the logprobs whose text is out; at the end all but those of a cut stop string."""
        waiting = self._waiting
        if self.finished and self._stops.matched is None:
            num_out = len(waiting)
        else:
            num_out = sum(1 for placed in waiting if placed.offset < self._num_shown)
        released = tuple(islice(waiting, num_out))
        for _ in range(num_out):
            waiting.popleft()
        return released


def one_by_one(delta: TokenDelta) -> Sequence[TokenDelta]:
    last = len(delta.tokens) - 1
    if last < 1:
        return (delta,)
    return [
        TokenDelta(
            (token,),
            delta.logprobs[index : index + 1],
            delta.prompt_logprobs if index == 0 else (),
            delta.finished if index == last else None,
        )
        for index, token in enumerate(delta.tokens)
    ]


def _failure(end: Finished) -> EngineFailure:
    if end.code == NonFiniteLogits.code:
        return NonFiniteLogits(end.message or "the logits of this request are not finite")
    if end.code == ConstraintFailed.code:
        return ConstraintFailed(end.message or "the constraint could not be followed")
    if end.code == PoisonRequest.code:
        return PoisonRequest(end.message or "the engine failed on this request")
    return EngineFailure(end.message or "the engine gave this request up")
