"""The text of a first muxcluster.yaml, with comments."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from muxcluster.cli.found.gpus import SeenGpus
from muxcluster.cli.found.models import Found, Model, Unserved

_HEAD = """\
# Made by muxcluster init. All keys: docs/reference/config.md.
#   muxcluster place FILE    what goes where, and what throughput to expect
#   muxcluster serve FILE    serve it from this machine
"""
_TAIL = """\
# policy:
#   packing: hybrid         # batch work in the slack that latency targets leave
# server:
#   host: 127.0.0.1         # 0.0.0.0: other machines too; set api_key then
#   port: 8000
#   api_key: SECRET
"""


def yaml_text(found: Sequence[Found], seen: SeenGpus) -> str:
    """Return the file for these models, at least one of which can be served."""
    parts = [_HEAD, "models:\n"]
    for model in found:
        if isinstance(model, Model):
            parts.extend(f"{line}\n" for line in _model_lines(model))
    unserved = [each for each in found if isinstance(each, Unserved)]
    if unserved:
        parts.append("# Not served:\n")
        parts.extend(f"#   {_line(each.what)}: {_line(each.why)}\n" for each in unserved)
    parts.append("\ncluster:\n")
    if seen.note:
        parts.append(f"  # {_line(seen.note)}\n")
    parts.append(f"  nodes: [{_flow(seen.nodes()[0])}]  # {_hardware(seen)}\n\n")
    return "".join((*parts, _TAIL))


def _model_lines(model: Model) -> Iterator[str]:
    if model.note:
        yield f"  # {_line(model.note)}"
    yield f"  - name: {_scalar(model.name)}"
    yield f"    path: {_scalar(model.path)}"
    for key, value in model.keys.items():
        yield f"    {key}: {_scalar(value)}"
    yield "    rate: 1.0                       # expected requests/s"
    yield "    # slo: {ttft: 0.5, tpot: 0.1}   # latency targets, seconds"


def _hardware(seen: SeenGpus) -> str:
    if seen.count:
        return "the GPUs of this machine"
    return "this machine's cores; a GPU's kind: muxcluster place --known"


def _flow(mapping: dict[str, Any]) -> str:
    return "{" + ", ".join(f"{key}: {_scalar(value)}" for key, value in mapping.items()) + "}"


def _scalar(value: Any) -> str:
    """Return a YAML scalar; texts in quotation marks unless they are plain words."""
    if isinstance(value, str) and value.replace("-", "").isalpha() and value.islower():
        return value
    return json.dumps(value, ensure_ascii=False)


def _line(text: str) -> str:
    """Return the text without what would end a comment."""
    return " ".join("".join(each if each.isprintable() else " " for each in text).split())
