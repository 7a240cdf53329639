"""How the outputs of a call are divided, and the grammar of their tool calls."""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from muxcluster.core.errors import InvalidValue
from muxcluster.core.inputs.images.rules import ImageLimits
from muxcluster.core.sampling import Constraint, SamplingParams
from muxcluster.http.calls.model_text import ModelText
from muxcluster.text.reasoning import HARMONY, PromptEnd, prompt_end
from muxcluster.text.schemas import ChatBody
from muxcluster.text.tokenizer import Tokenizer
from muxcluster.text.tools import harmony
from muxcluster.text.tools.asked import AskedTools
from muxcluster.text.tools.grammar import (
    call_grammar,
    call_or_json_grammar,
    channel_grammar,
    text_arguments,
)
from muxcluster.text.tools.output import OutputRules
from muxcluster.text.validation.prompts import chat_messages

ENDING_TOKENS = 32  # of a prompt, in which a tag may stand
# in messages that were checked before
_ANY_IMAGES = ImageLimits(most=2**31, most_bytes=2**62, most_pixels=2**62)


def output_rules(
    body: ChatBody, model: ModelText, asked: AskedTools | None, prompt: NDArray[np.int32]
) -> OutputRules:
    """Return how outputs that continue `prompt`, int32 [n], are divided. Raises InvalidValue."""
    form = None if asked is None else model.tool_format("tools")
    tags = None if body.separate_reasoning is False else model.tags
    marks = (() if form is None else form.marks) + (() if tags is None else (tags.begin, tags.end))
    if model.has_channels:
        marks = harmony.MARKS
    return OutputRules(
        tags=tags,
        prompt_end=_prompt_end(body, model, prompt),
        format=form,
        names=frozenset(() if asked is None else (tool.name for tool in asked.callable)),
        may_repeat=asked is None or asked.may_repeat,
        shows_reasoning=body.include_reasoning is not False,
        kept_tokens=_special(model.tokenizer, marks),
        texts={} if asked is None else text_arguments(asked),
        has_channels=model.has_channels,
    )


def constrained(
    sampling: SamplingParams, model: ModelText, asked: AskedTools | None, rules: OutputRules
) -> SamplingParams:
    """Return the sampling of a chat whose grammar, if it has one, holds after the reasoning.

    Calls that a request demands are all of the output, so that no other constraint applies. Beside
    tools that may be called or not, a JSON schema holds for an output without a call. Raises
    InvalidValue for other constraints beside such tools.
    """
    if sampling.constraint is None and (asked is None or not asked.has_grammar):
        return sampling
    begins_after = model.reasoning_end(rules.prompt_end)
    constraint = sampling.constraint
    if asked is not None and rules.has_channels:
        begins_after = ()  # the grammar has the reasoning, too
    if asked is not None:
        grammar = _grammar(rules, asked, constraint, is_after_reasoning=bool(begins_after))
        constraint = Constraint(grammar)
    assert constraint is not None, "there is one, or the tools have one"
    return replace(sampling, constraint=replace(constraint, begins_after=begins_after))


def _grammar(
    rules: OutputRules, asked: AskedTools, other: Constraint | None, *, is_after_reasoning: bool
) -> str:
    """Return the grammar of calls, and of what `other` asks of an output without one."""
    assert rules.format is not None, "without a format, tools are refused"
    if rules.has_channels:
        answer = None if other is None or asked.needs_call else other.grammar
        grammar = channel_grammar(asked, answer, rules.prompt_end)
    elif other is None or asked.needs_call:
        return call_grammar(rules.format, asked, is_after_reasoning=is_after_reasoning)
    else:
        grammar = call_or_json_grammar(rules.format, asked, other.grammar)
    if grammar is None:
        raise InvalidValue(
            "of output formats only JSON can be combined with tools that the model may call or "
            "not: set tool_choice to none, to required or to a function",
            "tool_choice",
        )
    return grammar


def _prompt_end(body: ChatBody, model: ModelText, prompt: NDArray[np.int32]) -> PromptEnd:
    """Return where the prompt leaves the model, AFTER if it does not think."""
    tags = HARMONY if model.has_channels else model.tags
    if tags is None:
        return PromptEnd.AFTER
    ending = model.tokenizer.decode(prompt[-ENDING_TOKENS:].tolist(), skip_special_tokens=False)
    continued = None
    if body.continue_final_message:
        parts = model.image_parts(_ANY_IMAGES)
        continued = str(chat_messages(body.messages, parts)[-1]["content"])
    return prompt_end(tags, ending, continued)


def _special(tokenizer: Tokenizer, marks: Iterable[str]) -> frozenset[int]:
    """Return the ids of those marks that are special tokens."""
    tokens = (tokenizer.token_id(mark) for mark in marks)
    return frozenset(token for token in tokens if token is not None and tokenizer.is_special(token))
