"""docs/reference/config.md: every key of muxcluster.yaml, as pydantic has them."""

import types
from collections.abc import Iterator
from typing import Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Interval, Le, MultipleOf
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from docs.generate.markdown import first_line, page, table
from muxcluster.config import schema

_INTRODUCTION = """\
# Configuration

All keys of `muxcluster.yaml`. Only `models`, with a `name` and a `path` or `shape` each, is
required. Unknown keys are errors that name the nearest valid one. Paths are relative to the file.

```yaml
models:
  - name: chat-7b
    path: /models/llama-2-7b
    rate: 4.0
    slo: {ttft: 0.4, tpot: 0.2}
cluster:
  nodes: [{name: a, gpus: 8, gpu: A100-80GB}]
policy: {packing: hybrid}
server: {port: 8000, api_key: secret}
```"""
_SECTIONS: tuple[tuple[str, type[BaseModel]], ...] = (
    ("models[]", schema.ModelSection),
    ("models[].adapters[]", schema.AdapterSection),
    ("models[].adapter_places", schema.AdapterPlacesSection),
    ("models[].batch", schema.BacklogSection),
    ("models[].slo", schema.SloSection),
    ("models[].speculation", schema.SpeculationSection),
    ("cluster", schema.ClusterSection),
    ("cluster.nodes[]", schema.NodeSection),
    ("policy", schema.PolicySection),
    ("server", schema.ServerSection),
    ("server.tls", schema.TlsSection),
    ("server.admin", schema.AdminSection),
    ("server.keys[]", schema.KeySection),
    ("server.store", schema.StoreSection),
    ("batch", schema.BatchSection),
)


def config_page() -> str:
    """Return the page."""
    sections = [
        f"## `{path}`\n\n{first_line(section.__doc__)}\n\n"
        + table(("key", "value", "default", "meaning"), _rows(section))
        for path, section in _SECTIONS
    ]
    return page(_INTRODUCTION, *sections)


def _rows(section: type[BaseModel]) -> Iterator[tuple[str, str, str, str]]:
    for name, field in section.model_fields.items():
        assert field.description, f"{section.__name__}.{name} has no description"
        value = _value(field.annotation, field.metadata)
        yield f"`{name}`", value, _default(field), field.description


def _value(annotation: Any, metadata: list[Any]) -> str:
    """Return the values that a key takes, in words."""
    origin = get_origin(annotation)
    arguments = get_args(annotation)
    if origin is Literal:
        return ", ".join(f"`{each}`" for each in arguments)
    if origin in (Union, types.UnionType):
        (kind,) = (each for each in arguments if each is not type(None))
        return _value(kind, metadata)
    if hasattr(annotation, "__metadata__"):
        return _value(arguments[0], [*_flat(annotation.__metadata__), *metadata])
    if origin is list:
        return f"list of {_value(arguments[0], [])}"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "section"
    words = {int: "integer", float: "number", str: "text", bool: "`true`, `false`"}
    return " ".join([words[annotation], *_bounds(metadata)])


def _flat(metadata: Any) -> Iterator[Any]:
    for each in metadata:
        if isinstance(each, FieldInfo):
            yield from each.metadata
        else:
            yield each


def _bounds(metadata: list[Any]) -> Iterator[str]:
    for each in metadata:
        if isinstance(each, Gt):
            yield f"> {each.gt:g}"
        elif isinstance(each, Ge):
            yield f"≥ {each.ge:g}"
        elif isinstance(each, MultipleOf):
            yield f"in steps of {each.multiple_of:g}"
        elif isinstance(each, Le) and not _is_width(each.le):
            yield f"≤ {each.le:g}"
        else:
            assert not isinstance(each, Interval), each


def _is_width(bound: Any) -> bool:
    """Tell limits of a machine number, which say nothing to a user."""
    return bool(bound >= 1e8)


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.default
    if value is None:
        return ""
    if isinstance(value, BaseModel):
        return "its defaults"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{_readable(value)}`" if value != [] else "none"


def _readable(value: Any) -> str:
    if isinstance(value, int) and value >= 2**20 and value % 2**20 == 0:
        return f"{value} ({value // 2**20} MiB)"
    return f"{value:g}" if isinstance(value, float) else str(value)
