"""/openapi.json for routes that parse their bodies by hand."""

from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel

REFERENCE = "#/components/schemas/{model}"
# By name, of the routes that were made so far.
documented_bodies: dict[str, type[BaseModel]] = {}


def documented(body: type[BaseModel]) -> dict[str, object]:
    """Return a route's `openapi_extra` that declares its body's schema."""
    documented_bodies[body.__name__] = body
    schema = {"$ref": REFERENCE.format(model=body.__name__)}
    return {"requestBody": {"content": {"application/json": {"schema": schema}}, "required": True}}


class DocumentedApp(FastAPI):
    """A FastAPI application whose document has the schemas that `documented` refers to."""

    def openapi(self) -> dict[str, Any]:
        document = super().openapi()
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        for name, body in documented_bodies.items():  # FastAPI would drop their null defaults
            schema = body.model_json_schema(ref_template=REFERENCE)
            schemas.update(schema.pop("$defs", {}))
            schemas[name] = schema
        return document
