"""docs/reference/http.md: routes of the server and the fields of their bodies."""

import types
from collections.abc import Iterator
from typing import Any, Literal, Union, get_args, get_origin

from fastapi.routing import APIRoute
from pydantic import BaseModel

from docs.generate.markdown import page, table
from muxcluster.http.app import AppParts, create_app
from muxcluster.http.routes.documents import documented_bodies
from muxcluster.text.schemas import ChatBody
from muxcluster.text.validation.fields import HARMLESS, REFUSED

_INTRODUCTION = """\
# HTTP

Routes and fields; behaviour is in [The OpenAI API](../guides/openai-api.md) and
[Other APIs](../guides/other-apis.md). A running server has the same as `/openapi.json`."""
_FIELDS = """\
## Fields that are accepted and change nothing

{harmless}.

## Fields that are refused

They would change the output and are not supported: 400 `unsupported_parameter`, unless they are
null or have the value at which they change nothing. Fields that nobody knows are
refused too, unless `server.lenient` drops them.

{refused}.

`/v1/completions` also refuses what only chats have: {of_chats}."""


class _NoModels:
    """A backend that serves nothing: enough to list the routes."""

    def models(self) -> list[Any]:
        return []

    def stats(self) -> list[Any]:
        return []


def http_page() -> str:
    """Return the page."""
    # routes are read, none is called: no more of these parts is needed
    backend: Any = _NoModels()
    nothing: Any = object()
    app = create_app(
        backend, batch_service=nothing, key_service=nothing, parts=AppParts(responses=nothing)
    )
    routes = sorted(
        (route.path, sorted(route.methods)[0])
        for route in _all_routes(app.routes)
        if route.include_in_schema
    )
    bodies = [
        f"## `{body.__name__}`\n\n{(body.__doc__ or '').splitlines()[0]}\n\n"
        + table(("field", "value"), _fields(body))
        for _, body in sorted(documented_bodies.items())
    ]
    of_chats = REFUSED.keys() & ChatBody.model_fields.keys()
    lists = _FIELDS.format(
        harmless=_listed(HARMLESS - ChatBody.model_fields.keys()),
        refused=_listed(REFUSED.keys() - of_chats),
        of_chats=_listed(of_chats),
    )
    return page(
        _INTRODUCTION,
        table(("route", "method"), [(f"`{path}`", method) for path, method in routes]),
        *bodies,
        lists,
    )


def _all_routes(routes: Any) -> Iterator[APIRoute]:
    for route in routes:
        if isinstance(route, APIRoute):
            yield route
        else:
            yield from _all_routes(getattr(getattr(route, "original_router", None), "routes", ()))


def _fields(body: type[BaseModel]) -> Iterator[tuple[str, str]]:
    for name, field in body.model_fields.items():
        needed = " (required)" if field.is_required() else ""
        yield f"`{field.alias or name}`", _value(field.annotation) + needed


def _value(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if hasattr(annotation, "__metadata__"):
        return _value(arguments[0])
    if origin in (Union, types.UnionType):
        return " or ".join(_value(each) for each in arguments if each is not type(None))
    if origin is Literal:
        return ", ".join(f"`{each}`" for each in arguments)
    if origin is list:
        return f"list of {_value(arguments[0])}"
    if origin is dict or annotation is dict:
        return "object"
    if annotation is Any:
        return "see its API's reference"
    if issubclass(annotation, BaseModel):
        return "object of " + ", ".join(name for name, _ in _fields(annotation))
    return {int: "integer", float: "number", str: "text", bool: "`true`, `false`"}[annotation]


def _listed(names: Any) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))
