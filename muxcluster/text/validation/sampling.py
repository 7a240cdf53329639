"""Makes the engine's sampling parameters from a checked body and a model's limits."""

import hashlib

import numpy as np

from muxcluster.core.errors import ContextLengthExceeded, InvalidValue
from muxcluster.core.request import ServiceClass, Slo
from muxcluster.core.sampling import SamplingParams
from muxcluster.core.served import ServedModel
from muxcluster.text.schemas import (
    ChatBody,
    CompletionBody,
    GenerationBody,
    SloBody,
    TextsBody,
)

DEFAULT_COMPLETION_TOKENS = 16


def sampling_params(body: GenerationBody, served: ServedModel, seed: int) -> SamplingParams:
    """Return the sampling of choice 0; `max_tokens_for` sets `max_tokens` per prompt.

    Raises InvalidValue where ids lie outside the vocabulary or min_tokens exceeds max_tokens.
    """
    num_top = num_logprobs(body)
    return SamplingParams(
        temperature=_or(body.temperature, 1.0),
        top_k=body.top_k if body.top_k is not None and body.top_k > 0 else None,
        top_p=_or(body.top_p, 1.0),
        min_p=_or(body.min_p, 0.0),
        repetition_penalty=_or(body.repetition_penalty, 1.0),
        frequency_penalty=_or(body.frequency_penalty, 0.0),
        presence_penalty=_or(body.presence_penalty, 0.0),
        logit_bias=_logit_bias(body, served.vocab_size),
        seed=seed if body.seed is None else body.seed,
        min_tokens=body.min_tokens or 0,
        stop_token_ids=_stop_token_ids(body, served.vocab_size),
        ignore_eos=bool(body.ignore_eos),
        logprobs=num_top,
        prompt_logprobs=num_top if isinstance(body, CompletionBody) and body.echo else None,
    )


def _or(value: float | None, default: float) -> float:
    return default if value is None else float(value)


def num_logprobs(body: GenerationBody) -> int | None:
    """Return how many top alternatives are asked for, None for no logprobs at all.

    Raises InvalidValue where chat asks for top_logprobs without logprobs.
    """
    if isinstance(body, CompletionBody):
        return body.logprobs
    if not isinstance(body, ChatBody):
        return None
    if body.top_logprobs is not None and not body.logprobs:
        raise InvalidValue("top_logprobs needs logprobs to be true", "top_logprobs")
    return (body.top_logprobs or 0) if body.logprobs else None


def _logit_bias(body: GenerationBody, vocab_size: int) -> tuple[tuple[int, float], ...]:
    pairs = []
    for key, bias in (body.logit_bias or {}).items():
        if not (key.isascii() and key.isdigit() and len(key) < 10 and int(key) < vocab_size):
            raise InvalidValue(
                f"logit_bias: {key[:20]!r} is no token id below {vocab_size}", "logit_bias"
            )
        pairs.append((int(key), float(bias)))
    return tuple(pairs)


def _stop_token_ids(body: GenerationBody, vocab_size: int) -> tuple[int, ...]:
    for token in body.stop_token_ids or ():
        if token >= vocab_size:
            raise InvalidValue(
                f"stop_token_ids: {token} is outside the vocabulary of {vocab_size}",
                "stop_token_ids",
            )
    return tuple(body.stop_token_ids or ())


def max_tokens_for(body: GenerationBody, served: ServedModel, num_prompt_tokens: int) -> int:
    """Return the most output tokens of a prompt: as asked for, else the route's default.

    Returns 0 only for completions with echo. Raises ContextLengthExceeded where prompt and
    max_tokens (at least one) do not fit `served.max_model_len`, InvalidValue for 0 and for
    min_tokens above the result.
    """
    rest = served.max_model_len - num_prompt_tokens
    asked, param = asked_max_tokens(body)
    if rest < max(asked or 0, 1):
        raise ContextLengthExceeded(
            f"the context of {served.name} is {served.max_model_len} tokens, but the request "
            f"takes {num_prompt_tokens} for the prompt and {max(asked or 0, 1)} for the output",
            param if asked and rest >= 1 else _prompt_param(body),
        )
    if asked is None:
        asked = rest if isinstance(body, ChatBody) else min(DEFAULT_COMPLETION_TOKENS, rest)
    elif asked == 0 and not (isinstance(body, CompletionBody) and body.echo):
        raise InvalidValue(f"{param} must be at least 1", param)
    if asked and (body.min_tokens or 0) > asked:
        raise InvalidValue(f"min_tokens is greater than {asked}, the most allowed", "min_tokens")
    return asked


def asked_max_tokens(body: GenerationBody) -> tuple[int | None, str]:
    """Return the limit in the body and its field."""
    if not isinstance(body, ChatBody) or body.max_completion_tokens is None:
        return body.max_tokens, "max_tokens"
    if body.max_tokens not in (None, body.max_completion_tokens):
        raise InvalidValue("max_tokens and max_completion_tokens differ", "max_tokens")
    return body.max_completion_tokens, "max_completion_tokens"


def _prompt_param(body: GenerationBody) -> str:
    return "messages" if isinstance(body, ChatBody) else "prompt"


def choice_seed(seed: int, index: int) -> int:
    """Return the seed of choice `index`; that of choice 0 is the request's, whatever `n` is."""
    if index == 0:
        return seed
    digest = hashlib.blake2b(f"{seed}:{index}".encode(), digest_size=8).digest()
    return int(np.frombuffer(digest, dtype="<i8")[0])


def service_class(body: GenerationBody | TextsBody) -> ServiceClass:
    """Return the class of a body: `flex` is batch, all others are interactive."""
    return ServiceClass.BATCH if body.service_tier == "flex" else ServiceClass.INTERACTIVE


def slo(body: SloBody | None, default: Slo | None) -> Slo | None:
    """Return the request's targets, completed from the model's. Raises InvalidValue."""
    if body is None or (body.ttft is None and body.tpot is None):
        return default
    ttft_s, tpot_s = body.ttft, body.tpot
    if default is not None:
        ttft_s = default.ttft_s if ttft_s is None else ttft_s
        tpot_s = default.tpot_s if tpot_s is None else tpot_s
    if ttft_s is None or tpot_s is None:
        raise InvalidValue("slo needs both ttft and tpot: the model has no target", "slo")
    return Slo(ttft_s, tpot_s)


def check_stream_options(body: GenerationBody) -> None:
    """Raise InvalidValue for stream options without a stream."""
    if body.stream_options is not None and not body.stream:
        raise InvalidValue("stream_options needs stream to be true", "stream_options")
