"""Calls for embeddings: the tokens of their texts, and how their vectors are written."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from muxcluster.core.errors import ContextLengthExceeded, InvalidValue, UnsupportedParameter
from muxcluster.core.sampling import SamplingParams
from muxcluster.core.served import EmbeddingOutput
from muxcluster.http.calls.call import Prompt
from muxcluster.http.calls.model_text import ModelText
from muxcluster.text.schemas import EmbeddingBody, RerankBody, ScoreBody, TextsBody
from muxcluster.text.validation.prompts import split_prompts, token_ids

MAX_INPUTS = 2048  # as in OpenAI's API
# Texts of a call that are at the engine at a time: others' requests come in between
MOST_AT_ONCE = 256
# The engine ends a request with its first token; for an embedding model that is the vector's
SAMPLING = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
_LEAST_LENGTH = 1e-12  # below which a vector is not made longer, as torch's `normalize`


@dataclass(frozen=True, slots=True)
class VectorForm:
    """How the vectors of a call are written."""

    dimensions: int
    is_normalised: bool
    is_base64: bool

    @classmethod
    def of(cls, body: EmbeddingBody, model: ModelText) -> "VectorForm":
        """Return what `body` asks for. Raises InvalidValue as `output_of`, and for dimensions."""
        output = output_of(model)
        dimensions = output.size if body.dimensions is None else body.dimensions
        if not output.allows(dimensions):
            raise InvalidValue(_dimensions_refusal(model.served.name, output), "dimensions")
        return cls(dimensions, output.is_normalised, body.encoding_format == "base64")

    def write(self, vector: bytes) -> str | list[float]:
        """Return a vector as JSON has it; vector: float32 of the model's size, as bytes.

        Text holds little-endian float32 in base64.
        """
        numbers = np.frombuffer(vector, dtype="<f4")[: self.dimensions]
        if self.is_normalised:
            wide = numbers.astype(np.float64)
            numbers = (wide / max(float(np.linalg.norm(wide)), _LEAST_LENGTH)).astype("<f4")
        if self.is_base64:
            return base64.b64encode(numbers.tobytes()).decode("ascii")
        written: list[float] = numbers.tolist()
        return written


def output_of(model: ModelText) -> EmbeddingOutput:
    """Return what the model answers with. Raises InvalidValue if it is no embedding model."""
    output = model.served.embedding
    if output is None:
        does = "generates text"
        if model.served.scoring is not None:
            does = "scores pairs of texts (/v1/score, /v1/rerank)"
        raise InvalidValue(f"{model.served.name} {does} and gives no embeddings", "model")
    return output


def check_generates(model: ModelText) -> None:
    """Raise InvalidValue if the model does not generate."""
    served = model.served
    if served.embedding is not None or served.scoring is not None:
        does = "gives embeddings (/v1/embeddings)"
        if served.scoring is not None:
            does = "scores pairs of texts (/v1/score, /v1/rerank)"
        raise InvalidValue(f"{served.name} {does} and generates no text", "model")


@dataclass(frozen=True, slots=True, eq=False)
class Text:
    """A text of a call, its token ids or a pair of texts, and the field that it is in."""

    param: str
    content: str | list[int] | tuple[str, str]

    @property
    def length(self) -> int:
        """Characters or tokens."""
        if isinstance(self.content, tuple):
            return sum(map(len, self.content))
        return len(self.content)


def texts_of(body: TextsBody, model: ModelText) -> list[Text]:
    """Return the texts of `body`, for each of which the engine is asked for a vector or a score.

    Raises InvalidValue, also if the model answers with something else.
    """
    if model.served.scoring is not None and isinstance(body, ScoreBody | RerankBody):
        return _at_most(_pairs(body), "documents" if isinstance(body, RerankBody) else "text_2")
    output_of(model)
    if isinstance(body, EmbeddingBody):
        return _named("input", split_prompts(body.input, "input", MAX_INPUTS))
    if isinstance(body, RerankBody):
        texts = [Text("query", body.query), *_named("documents", body.documents)]
        return _at_most(texts, "documents")
    assert isinstance(body, ScoreBody)
    _check_numbers(body)
    texts = [*_named("text_1", body.text_1), *_named("text_2", body.text_2)]
    return _at_most(texts, "text_2")


def _pairs(body: ScoreBody | RerankBody) -> list[Text]:
    if isinstance(body, RerankBody):
        firsts, seconds = [body.query] * len(body.documents), _named("documents", body.documents)
    else:
        _check_numbers(body)
        firsts, seconds = body.text_1, _named("text_2", body.text_2)
        firsts = firsts if len(firsts) > 1 else firsts * len(seconds)
    return [
        Text(second.param, (first, str(second.content)))
        for first, second in zip(firsts, seconds, strict=True)
    ]


def _check_numbers(body: ScoreBody) -> None:
    if len(body.text_1) not in (1, len(body.text_2)):
        message = f"text_1 has {len(body.text_1)} texts: one, or as many as text_2, are compared"
        raise InvalidValue(message, "text_1")


def _named(param: str, contents: Sequence[str | list[int]]) -> list[Text]:
    if len(contents) == 1:
        return [Text(param, contents[0])]
    return [Text(f"{param}[{i}]", content) for i, content in enumerate(contents)]


def _at_most(texts: list[Text], param: str) -> list[Text]:
    if len(texts) > MAX_INPUTS:
        raise InvalidValue(f"at most {MAX_INPUTS} texts in one request", param)
    return texts


def embedding_prompts(
    body: TextsBody, model: ModelText, texts: Sequence[Text]
) -> tuple[Prompt, ...]:
    """Tokenise the texts of `body`. Raises RequestError naming the text that is wrong."""
    most = _most_tokens(body, model)
    return tuple(
        Prompt("", _tokens(text.content, body, model, most, text.param), max_tokens=0)
        for text in texts
    )


def _tokens(
    item: str | list[int] | tuple[str, str],
    body: TextsBody,
    model: ModelText,
    most: int | None,
    param: str,
) -> NDArray[np.int32]:
    """Return the tokens of a text, cut to `most` if it is given."""
    is_marked = body.add_special_tokens is not False
    if isinstance(item, tuple):
        if most is not None or not is_marked:
            name = "add_special_tokens" if most is None else "truncate_prompt_tokens"
            raise UnsupportedParameter(f"{name} is not supported for pairs of texts", name)
        model.check_length("".join(item), param)
        tokens = model.encode_pair(*item)
    elif not isinstance(item, str):
        tokens = token_ids(item, model.served.vocab_size, param)[:most]
    elif most is not None:
        tokens = _cut(item, model, most, is_marked=is_marked)
    else:
        model.check_length(item, param)
        tokens = model.encode(item, add_special_tokens=is_marked)
    if len(tokens) == 0:
        raise InvalidValue(f"{param} is empty", param)
    longest = model.served.max_model_len
    if len(tokens) > longest:
        message = f"the context of {model.served.name} is {longest} tokens; {param} has "
        raise ContextLengthExceeded(f"{message}{len(tokens)}", param)
    return tokens


def _cut(text: str, model: ModelText, most: int, *, is_marked: bool) -> NDArray[np.int32]:
    """Return the first tokens of `text`, `most` with the special ones before and behind it."""
    # beyond what the first tokens depend on, unless the tokenizer leaves much of a text out
    length = 2 * most * model.tokenizer.longest
    tokens = model.encode(text[:length], add_special_tokens=is_marked)
    while len(tokens) <= 2 * most and length < len(text):
        length *= 2
        tokens = model.encode(text[:length], add_special_tokens=is_marked)
    text = text[:length]
    if len(tokens) <= most:
        return tokens
    plain = model.encode(text, add_special_tokens=False)
    num_special = len(tokens) - len(plain)
    if most <= num_special:
        message = f"truncate_prompt_tokens must be more than {num_special}, the special tokens"
        raise InvalidValue(message, "truncate_prompt_tokens")
    first = next(
        (i for i in range(num_special + 1) if np.array_equal(tokens[i:][: len(plain)], plain)), 0
    )
    parts = tokens[:first], plain[: most - num_special], tokens[first + len(plain) :]
    return np.concatenate(parts)


def _most_tokens(body: TextsBody, model: ModelText) -> int | None:
    """Return `truncate_prompt_tokens`; -1 is the context. None: nothing is cut."""
    asked, longest = body.truncate_prompt_tokens, model.served.max_model_len
    if asked is None or asked == -1:
        return asked and longest
    if not 0 < asked <= longest:
        message = f"truncate_prompt_tokens must be -1, or 1 to {longest}, the model's context"
        raise InvalidValue(message, "truncate_prompt_tokens")
    return asked


def _dimensions_refusal(name: str, output: EmbeddingOutput) -> str:
    sizes = f"{name} gives vectors of {output.size} numbers"
    if output.has_any_dimensions:
        return f"{sizes} or fewer"
    if output.dimensions:
        return f"{sizes}, or of {', '.join(map(str, output.dimensions))}"
    return (
        f"{sizes}; nothing says that shorter ones keep their meaning (is_matryoshka or "
        "matryoshka_dimensions in its config.json)"
    )
