"""The configuration of `muxcluster serve MODEL…`, which has no file."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from muxcluster.cli.found.gpus import SeenGpus, seen_gpus
from muxcluster.cli.found.names import served_name
from muxcluster.config.hub import Fetching
from muxcluster.config.load import Config, config_of
from muxcluster.core.errors import ConfigError

WHERE = Path("command line")  # in errors, where the name of a file stands otherwise


@dataclass(frozen=True, slots=True)
class NamedModels:
    """Models of the command line, and what it says of all of them."""

    models: Sequence[str]  # directories and Hugging Face ids
    names: Sequence[str] = ()  # in the API, one a model; none: the last part of each
    max_model_len: int | None = None
    adapters: Sequence[str] = ()  # NAME=PATH of each, of the only model


def config_of_models(named: NamedModels, fetching: Fetching) -> Config:
    """Return the configuration of these models on this machine's GPUs, or on its cores.

    Raises ConfigError and LoadError as `load_config`, and for names that are not unique or adapters
    of several models.
    """
    names, adapters = _names(named), _adapters(named)
    sections = [
        {**_section(*each, named.max_model_len), **adapters}
        for each in zip(names, named.models, strict=True)
    ]
    nodes = _nodes(seen_gpus(), _torch_has_cuda, fetching.tell)
    return config_of({"models": sections, "cluster": {"nodes": nodes}}, WHERE, fetching)


def _section(name: str, model: str, max_model_len: int | None) -> Mapping[str, Any]:
    section = {"name": name, "path": model}
    return section if max_model_len is None else {**section, "max_model_len": max_model_len}


def _adapters(named: NamedModels) -> Mapping[str, Any]:
    """Return the key of the only model's section for its adapters, if any. Raises ConfigError."""
    if not named.adapters:
        return {}
    if len(named.models) > 1:
        message = f"adapters of which of {len(named.models)} models? Say it in a YAML file"
        raise ConfigError("--lora-modules", "", message)
    pairs = [each.partition("=") for each in named.adapters]
    for given, (name, _, path) in zip(named.adapters, pairs, strict=True):
        if not name or not path:
            raise ConfigError("--lora-modules", "", f"{given!r:.200} is not NAME=PATH")
    return {"adapters": [{"name": name, "path": path} for name, _, path in pairs]}


def _names(named: NamedModels) -> list[str]:
    """Return the models' names in the API. Raises ConfigError."""
    if named.names and len(named.names) != len(named.models):
        message = f"{len(named.names)} names for {len(named.models)} models: give one a model"
        raise ConfigError("--served-model-name", "", message)
    names = list(named.names) or [served_name(model) for model in named.models]
    first: dict[str, str] = {}
    for name, model in zip(names, named.models, strict=True):
        if name in first:
            message = f"would be called {name!r}, as {first[name]} is: give --served-model-name"
            raise ConfigError(model, "", f"{message} for each model, or a YAML file")
        first[name] = model
    return names


def _torch_has_cuda() -> bool:
    import torch  # takes seconds, and is asked only where a GPU was seen

    return torch.cuda.is_available()


def _nodes(
    seen: SeenGpus, has_cuda: Callable[[], bool], tell: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Return the nodes of the configuration, and tell why GPUs that are there are not used."""
    note = seen.note
    if seen.count and not has_cuda():
        note = f"{seen.count} x {seen.kind} are not used: this torch finds no CUDA"
        seen = SeenGpus()
    if note:
        tell(f"serving on this machine's cores: {note}")
    return seen.nodes()
