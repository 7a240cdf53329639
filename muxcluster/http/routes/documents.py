"""/openapi.json for routes that parse their bodies by hand."""

from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel

from muxcluster.http.apis.messages.body import CountTokensBody, MessagesBody
from muxcluster.http.apis.responses.body import ResponsesBody
from muxcluster.text.schemas import (
    BatchBody,
    BatchPlanBody,
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    EmbeddingBody,
    LoadAdapterBody,
    RerankBody,
    ScoreBody,
    TokenizeBody,
    UnloadAdapterBody,
)

BODIES: tuple[type[BaseModel], ...] = (
    ChatBody,
    CompletionBody,
    MessagesBody,
    CountTokensBody,
    ResponsesBody,
    TokenizeBody,
    DetokenizeBody,
    EmbeddingBody,
    ScoreBody,
    RerankBody,
    BatchBody,
    BatchPlanBody,
    LoadAdapterBody,
    UnloadAdapterBody,
)
REFERENCE = "#/components/schemas/{model}"


def documented(body: type[BaseModel]) -> dict[str, object]:
    """Return a route's `openapi_extra` that declares its body's schema."""
    schema = {"$ref": REFERENCE.format(model=body.__name__)}
    return {"requestBody": {"content": {"application/json": {"schema": schema}}, "required": True}}


class DocumentedApp(FastAPI):
    """A FastAPI application whose document has the schemas that `documented` refers to."""

    def openapi(self) -> dict[str, Any]:
        document = super().openapi()
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        for body in BODIES:
            schema = body.model_json_schema(ref_template=REFERENCE)
            schemas.update(schema.pop("$defs", {}))
            schemas[body.__name__] = schema
        return document
