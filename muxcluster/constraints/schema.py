"""Checks a client's JSON schema: well formed, not too large, and honoured in full.

Written out, not left to a validator of meta-schemas: this runs in the server's event loop on what
strangers send, and it says which keywords of a valid schema no grammar can honour. The tests hold
it against the meta-schemas.
"""

import copy
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from muxcluster.core.errors import InvalidValue
from muxcluster.core.inputs.clip import clip, plain

# Lists and objects in one another, over the whole JSON value. A schema's level takes two, and the
# compiler's JSON parser ends at 128.
MOST_DEPTH = 64
# As JSON. Compiling takes about 2 ms a KB (docs/concepts/structured-outputs.md).
MOST_BYTES = 256 * 1024 - 1024

DRAFTS = (
    "https://json-schema.org/draft/2020-12/schema",
    "https://json-schema.org/draft/2019-09/schema",
    "http://json-schema.org/draft-07/schema",
    "http://json-schema.org/draft-06/schema",
)
TYPES = ("null", "boolean", "object", "array", "number", "string", "integer")
FORMATS = (
    "date-time",
    "time",
    "date",
    "duration",
    "email",
    "hostname",
    "ipv4",
    "ipv6",
    "uuid",
    "uri",
)
# Keywords of JSON Schema that restrict values and that the grammar engine does not know
UNSUPPORTED = (
    "not",
    "if",
    "then",
    "else",
    "contains",
    "minContains",
    "maxContains",
    "propertyNames",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "unevaluatedItems",
    "unevaluatedProperties",
    "$dynamicRef",
    "$recursiveRef",
)
_MAPS = ("properties", "patternProperties", "$defs", "definitions")
_LISTS = ("anyOf", "allOf", "oneOf", "prefixItems")
_SINGLES = ("items", "additionalItems", "additionalProperties")


def check_schema(schema: Any, param: str) -> None:
    """Raise InvalidValue, with the path inside the schema, unless `schema` can be honoured.

    It may still turn out too complex, or contradict itself, when the mask process compiles it.
    param: where the request has the schema.
    """
    check_size(schema, param)
    if schema is False:
        raise InvalidValue(f"{param}: no value is valid against `false`", param)
    is_old = _is_old(schema, param)
    for path, each in _subschemas(schema, ""):
        problem = _problem(each, path, schema, is_old)
        if problem is not None:
            place, message = problem
            raise InvalidValue(f"{param}{place}: {message}", param)


def without_harmless(schema: Any) -> Any:
    """Return the schema without keywords that change nothing and that the compiler refuses."""
    if not any(_has_harmless(each) for _, each in _subschemas(schema, "")):
        return schema
    found = copy.deepcopy(schema)
    for _, each in _subschemas(found, ""):
        if _has_harmless(each):
            del each["uniqueItems"]
    return found


def _has_harmless(schema: Any) -> bool:
    return isinstance(schema, dict) and schema.get("uniqueItems") is False


def check_size(value: Any, param: str, most_depth: int = MOST_DEPTH) -> None:
    """Raise InvalidValue for a value that is too large or too deep, or is not JSON.

    However large it is, no more is looked at than may be taken: this holds up other requests.
    """
    num_bytes, level = 0, [value]
    for _ in range(most_depth):
        num_bytes += len(level)  # a value takes a byte at least
        if num_bytes > MOST_BYTES:
            break
        level = [part for each in level for part in _parts(each)]
        if not level:
            break
    else:
        raise InvalidValue(f"{param}: nested more than {most_depth} deep", param)
    if num_bytes <= MOST_BYTES:
        try:
            num_bytes = len(json.dumps(value, allow_nan=False))
        except (TypeError, ValueError):
            raise InvalidValue(f"{param}: not a JSON value", param) from None
    if num_bytes > MOST_BYTES:
        raise InvalidValue(f"{param}: larger than {MOST_BYTES:,} bytes of JSON", param)


def _parts(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def _is_old(schema: Any, param: str) -> bool:
    """True for drafts before 2020-12, in which `items` may be a list."""
    if not isinstance(schema, dict) or "$schema" not in schema:
        return False
    draft = schema["$schema"]
    if not isinstance(draft, str) or draft.rstrip("#") not in DRAFTS:
        raise InvalidValue(f"{param}.$schema: must be one of {', '.join(DRAFTS)}", param)
    return draft.rstrip("#") != DRAFTS[0]


def _subschemas(schema: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the schema and all inside it, each with its path; also values in a schema's place."""
    waiting = [(path, schema)]
    while waiting:
        path, each = waiting.pop()
        yield path, each
        if not isinstance(each, dict):
            continue
        for name in _MAPS:
            if isinstance(inner := each.get(name), dict):
                waiting += [(f"{path}.{name}.{plain(key)}", value) for key, value in inner.items()]
        for name in (*_LISTS, "items"):
            if isinstance(inner := each.get(name), list):
                waiting += [(f"{path}.{name}[{at}]", value) for at, value in enumerate(inner)]
        waiting += [
            (f"{path}.{name}", each[name])
            for name in _SINGLES
            if name in each and not (name == "items" and isinstance(each[name], list))
        ]


def _problem(schema: Any, path: str, root: Any, is_old: bool) -> tuple[str, str] | None:
    """Return what is wrong with one schema, apart from those inside it, and where."""
    if isinstance(schema, bool):
        return None
    if not isinstance(schema, dict):
        return path, "a schema must be an object, or true or false"
    for name, value in schema.items():
        message = _keyword_problem(name, value)
        if message is None and name == "items" and isinstance(value, list) and not is_old:
            message = "must be a schema; a list of schemas is `prefixItems`"
        if message is None and name == "$ref" and not _resolves(root, value):
            message = f"{clip(value)} is not in this schema"
        if message is None and name in ("$id", "x-guidance") and (path or name != "$id"):
            message = "cannot be honoured here"
        if message is not None:
            return f"{path}.{name}", message
    return _joint_problem(schema, path)


def _joint_problem(schema: Mapping[str, Any], path: str) -> tuple[str, str] | None:
    """Return what is wrong with keywords together."""
    # The grammar lets keys that are not named repeat, and a JSON parser keeps the last of them.
    least = schema.get("minProperties", 0)
    if least > len(set(schema.get("required", []))) + 1:
        return f"{path}.minProperties", (
            "cannot be honoured: only 1 more than the properties in `required` can be enforced"
        )
    return None


def _resolves(root: Any, ref: str) -> bool:
    """True if the reference leads to a schema inside `root`, as the compiler follows it."""
    if ref in ("#", "#/"):
        return True
    if not ref.startswith("#/"):
        return False
    found = root
    for part in ref[2:].split("/"):
        if isinstance(found, list) and part.isdecimal() and int(part) < len(found):
            found = found[int(part)]
        elif isinstance(found, dict) and part in found:
            found = found[part]
        else:
            return False
    return isinstance(found, dict | bool)


def _keyword_problem(name: str, value: Any) -> str | None:
    if name in UNSUPPORTED:
        return "this keyword cannot be honoured"
    rule = _RULES.get(name)
    if rule is None:
        return None  # JSON Schema says that unknown keywords restrict nothing
    return None if rule.holds(value) else rule.message


@dataclass(frozen=True, slots=True)
class _Rule:
    holds: Callable[[Any], bool]
    message: str


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    # The compiler counts in 64 bits, and a million already is more than any answer has.
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31


def _is_type(value: Any) -> bool:
    if isinstance(value, list):
        return bool(value) and all(each in TYPES for each in value) and _is_unique(value)
    return value in TYPES


def _is_filled(value: Any) -> bool:
    return isinstance(value, list) and bool(value)


def _is_unique(value: list[Any]) -> bool:
    return len(set(value)) == len(value)


def _is_texts(value: Any) -> bool:
    return (
        isinstance(value, list)
        and all(isinstance(each, str) for each in value)
        and _is_unique(value)
    )


_TEXT = _Rule(lambda value: isinstance(value, str), "must be a text")
_NUMBER = _Rule(_is_number, "must be a number")
_COUNT = _Rule(_is_count, "must be a whole number from 0 to 2147483647")
_MAP = _Rule(lambda value: isinstance(value, dict), "must be an object of schemas")
_LIST = _Rule(_is_filled, "must be a list of schemas")
_RULES = {
    "type": _Rule(_is_type, f"must be one of {', '.join(TYPES)}, or a list of these"),
    "enum": _Rule(_is_filled, "must be a list of values"),
    "multipleOf": _Rule(lambda value: _is_number(value) and value > 0, "must be above 0"),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _NUMBER),
    **dict.fromkeys(
        ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"), _COUNT
    ),
    **dict.fromkeys(("pattern", "$ref", "$id", "$anchor", "$comment"), _TEXT),
    **dict.fromkeys(("title", "description", "contentEncoding", "contentMediaType"), _TEXT),
    "format": _Rule(
        lambda value: value in FORMATS,
        f"must be one of {', '.join(FORMATS)}: no other format can be honoured",
    ),
    "required": _Rule(_is_texts, "must be a list of different texts"),
    "uniqueItems": _Rule(
        lambda value: value is False, "cannot be honoured: a grammar does not compare items"
    ),
    **dict.fromkeys(_MAPS, _MAP),
    **dict.fromkeys(_LISTS, _LIST),
}
