"""Makes the grammar that an output must match from `response_format` and fields like it."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from muxcluster.constraints import grammars
from muxcluster.constraints.structural_tags import structural_tag
from muxcluster.core.errors import InvalidValue, MissingParameter, UnsupportedParameter
from muxcluster.core.sampling import Constraint
from muxcluster.text.schemas import GenerationBody, ResponseFormat, StructuredOutputs

# By kind of constraint: makes the grammar from the value and the name of its field, for errors
_GRAMMARS: Mapping[str, Callable[[Any, str], str]] = MappingProxyType(
    {
        "json": grammars.json_schema,
        "json_object": lambda value, param: grammars.json_object(),
        "regex": grammars.regex,
        "choice": grammars.choice,
        "grammar": grammars.lark,
        "structural_tag": structural_tag,
    }
)
# Fields that hold a constraint and nothing else, with its kind: older vLLM's, then SGLang's
_FIELDS: Mapping[str, str] = MappingProxyType(
    {
        "guided_json": "json",
        "guided_regex": "regex",
        "guided_choice": "choice",
        "guided_grammar": "grammar",
        "json_schema": "json",
        "regex": "regex",
        "ebnf": "grammar",
        "structural_tag": "structural_tag",
    }
)
# Fields of `response_format` beside `type`, by type
_FIELDS_OF_TYPE: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "text": frozenset(),
        "json_object": frozenset(),
        "json_schema": frozenset({"json_schema"}),
        "structural_tag": frozenset({"format", "structures", "triggers"}),
    }
)


@dataclass(frozen=True, slots=True)
class _Asked:
    """A constraint in a body."""

    param: str  # the field that holds `value`
    kind: str  # one of _GRAMMARS
    value: Any


def has_constraint(body: GenerationBody) -> bool:
    """Return whether `body` has a field that `constraint_of` reads."""
    names = ("response_format", "structured_outputs", *_FIELDS)
    return any(getattr(body, name) is not None for name in names)


def constraint_of(body: GenerationBody) -> Constraint | None:
    """Return the constraint that `body` asks for, None where any text will do.

    Checking a large schema takes long. Raises InvalidValue for more than one constraint and for
    what is not a schema, regular expression or grammar (the message has the path inside it);
    MissingParameter; UnsupportedParameter for what would be dropped.
    """
    asked = list(_all_asked(body))
    if not asked:
        return None
    first, *more = asked
    if more:
        param = more[0].param
        message = f"a request may have one constraint, not both {first.param} and {param}"
        raise InvalidValue(message, param)
    return Constraint(_GRAMMARS[first.kind](first.value, first.param))


def _all_asked(body: GenerationBody) -> Iterator[_Asked]:
    if body.response_format is not None:
        yield from _of_response_format(body.response_format)
    if body.structured_outputs is not None:
        yield from _of_structured_outputs(body.structured_outputs)
    for name, kind in _FIELDS.items():
        value = getattr(body, name)
        if value is not None:
            yield _Asked(name, kind, value)


def _of_response_format(wanted: ResponseFormat) -> Iterator[_Asked]:
    given = {
        name: value
        for name in ("json_schema", "format", "structures", "triggers")
        if (value := getattr(wanted, name)) is not None
    }
    foreign = sorted(given.keys() - _FIELDS_OF_TYPE[wanted.type])
    if foreign:
        param = f"response_format.{foreign[0]}"
        raise InvalidValue(f"{param} does not belong to type {wanted.type}", param)
    if wanted.type == "json_object":
        yield _Asked("response_format", "json_object", True)
    elif wanted.type == "structural_tag":
        yield _Asked("response_format", "structural_tag", given)
    elif wanted.type == "json_schema":
        param = "response_format.json_schema"
        if wanted.json_schema is None:
            raise MissingParameter(f"missing required field {param}", param)
        yield _Asked(f"{param}.schema", "json", wanted.json_schema.schema_)


def _of_structured_outputs(wanted: StructuredOutputs) -> Iterator[_Asked]:
    """Yield what is asked for; `json_object: false` asks for nothing."""
    _refuse_options(wanted)
    values = {
        "json": wanted.json_,
        "json_object": wanted.json_object,
        "regex": wanted.regex,
        "choice": wanted.choice,
        "grammar": wanted.grammar,
        "structural_tag": wanted.structural_tag,
    }
    given = {kind: value for kind, value in values.items() if value is not None}
    if not given:
        message = f"structured_outputs needs one of {', '.join(values)}"
        raise InvalidValue(message, "structured_outputs")
    for kind, value in given.items():
        if value is not False:
            yield _Asked(f"structured_outputs.{kind}", kind, value)


def _refuse_options(wanted: StructuredOutputs) -> None:
    """Raise UnsupportedParameter for an option with an effect."""
    for name in ("disable_any_whitespace", "disable_additional_properties", "whitespace_pattern"):
        if getattr(wanted, name) not in (None, False):
            param = f"structured_outputs.{name}"
            raise UnsupportedParameter(f"{param} is not supported by this server", param)
