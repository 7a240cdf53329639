"""Reasoning that a model writes in tags before its answer."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

NONE, AUTO = "none", "auto"


@dataclass(frozen=True, slots=True)
class ReasoningTags:
    """The texts around the reasoning. name: as in `models[].reasoning`."""

    name: str
    begin: str
    end: str


KNOWN_TAGS = (
    ReasoningTags("think", "<think>", "</think>"),
    ReasoningTags("mistral", "[THINK]", "[/THINK]"),
    ReasoningTags("seed", "<seed:think>", "</seed:think>"),
)

# of gpt-oss: a channel of its own (`text/tools/harmony.py`)
HARMONY = ReasoningTags("harmony", "<|channel|>analysis<|message|>", "<|end|>")


class PromptEnd(StrEnum):
    """Where a prompt leaves a model that may think."""

    BEFORE = "before"  # it decides whether to think
    WITHIN = "within"  # the prompt has opened the tag
    AFTER = "after"  # the prompt has closed it, too


def tags_of(setting: str, template: str, has_token: Callable[[str], bool]) -> ReasoningTags | None:
    """Return the tags of a model, None if it writes none.

    setting: `models[].reasoning`. template: the source of its chat template, "" without one.
    has_token: returns whether a text is one token. With `auto` the tags are those that the template
    names or that are tokens.
    """
    if setting == NONE:
        return None
    if setting == HARMONY.name or (setting == AUTO and HARMONY.begin in template):
        return HARMONY
    for tags in KNOWN_TAGS:
        if setting == tags.name:
            return tags
        is_named = tags.begin in template or tags.end in template
        if setting == AUTO and (is_named or (has_token(tags.begin) and has_token(tags.end))):
            return tags
    return None


def prompt_end(tags: ReasoningTags, prompt: str, continued: str | None) -> PromptEnd:
    """Return where `prompt` leaves the model.

    prompt: its end is enough. continued: the message that the output continues, if it does.
    """
    if continued is not None:
        begin, end = continued.rfind(tags.begin), continued.rfind(tags.end)
        is_open = begin > end
        return PromptEnd.WITHIN if is_open else PromptEnd.AFTER
    ending = prompt.rstrip()
    if ending.endswith(tags.begin):
        return PromptEnd.WITHIN
    return PromptEnd.AFTER if ending.endswith(tags.end) else PromptEnd.BEFORE
