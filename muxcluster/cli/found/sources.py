"""What the arguments of `muxcluster init` stand for."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from muxcluster.cli.found.commands import models_in
from muxcluster.cli.found.llama_swap import is_llama_swap, models_of
from muxcluster.cli.found.models import (
    GGUF,
    Found,
    Model,
    Unserved,
    cached_models,
    examined,
    models_below,
)
from muxcluster.cli.found.names import served_name
from muxcluster.config.hub import HubId
from muxcluster.config.yamlfile import read_yaml
from muxcluster.core.errors import ConfigError

_YAML = (".yaml", ".yml")
_MOST_BYTES = 2**20  # of a script


def found_in(sources: Sequence[str]) -> list[Found]:
    """Return the models of each argument; without any, those below this folder and of the cache.

    Names are unique in what is returned. Raises ConfigError for an argument that is nothing.
    """
    if not sources:
        return _unique([*models_below(Path()), *cached_models()])
    return _unique(each for source in sources for each in _of(source))


def _of(source: str) -> Iterator[Found]:
    path = Path(source).expanduser()
    if (path / "config.json").is_file():
        yield examined(path)
    elif path.is_dir():
        found = list(models_below(path))
        if not found:
            raise ConfigError(source, "", "no model is in this folder or below it")
        yield from found
    elif path.is_file():
        yield from _of_file(path)
    elif HubId.of(source) is not None:
        yield Model(served_name(source), source, "from the Hugging Face hub")
    else:
        message = "neither a file, nor a folder, nor a Hugging Face id (org/name)"
        raise ConfigError(source, "", message)


def _of_file(path: Path) -> Iterator[Found]:
    if path.suffix.lower() == ".gguf":
        yield Unserved(str(path), GGUF)
        return
    if path.suffix.lower() in _YAML:
        content, _ = read_yaml(path)
        if not is_llama_swap(content):
            raise ConfigError(path, "", "no llama-swap file: models: with a cmd each")
        yield from models_of(content)
        return
    try:
        with path.open(encoding="utf-8") as file:
            found = list(models_in(file.read(_MOST_BYTES)))
    except (OSError, ValueError) as error:
        raise ConfigError(path, "", f"not readable: {error}") from error
    if not found:
        raise ConfigError(path, "", "no line of it starts with vllm serve")
    yield from found


def _unique(found: Iterable[Found]) -> list[Found]:
    """Give models of equal names longer ones, and name those that are there twice."""
    by_name: dict[str, Model] = {}
    others: list[Unserved] = []
    for each in found:
        if isinstance(each, Unserved):
            others.append(each)
            continue
        longer = "/".join(Path(each.path.partition("@")[0]).parts[-2:])
        name = next((name for name in (each.name, longer) if name not in by_name), "")
        if name:
            by_name[name] = replace(each, name=name)
        else:
            others.append(Unserved(each.path, f"its name, {each.name}, is taken"))
    return [*by_name.values(), *others]
