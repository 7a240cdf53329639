"""Models of a llama-swap configuration."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from muxcluster.cli.found.commands import model_of
from muxcluster.cli.found.models import Found, Unserved

_MACRO = re.compile(r"\$\{([\w.-]+)\}")
_MOST_NESTED = 8  # macros in macros


def is_llama_swap(content: Any) -> bool:
    """Return whether the content of a YAML file has a command for each model."""
    models = content.get("models") if isinstance(content, dict) else None
    return isinstance(models, dict) and all(
        isinstance(each, dict) and "cmd" in each for each in models.values()
    )


def models_of(content: Mapping[str, Any]) -> Iterator[Found]:
    """Yield a model for each command."""
    shared = content.get("macros")
    for name, section in content["models"].items():
        own = section.get("macros")
        macros = {
            **(shared if isinstance(shared, dict) else {}),
            **(own if isinstance(own, dict) else {}),
            "MODEL_ID": name,
        }
        command = " ".join(_expanded(str(section["cmd"]), macros).replace("\\\n", " ").split("\n"))
        found = model_of(command, str(name))
        program = next(iter(command.split()), "nothing")
        yield found or Unserved(str(name), f"it is started by {program}, of which nothing is known")


def _expanded(text: str, macros: Mapping[str, Any]) -> str:
    for _ in range(_MOST_NESTED):
        text = _MACRO.sub(lambda match: str(macros.get(match[1], match[0])), text)
    return text
