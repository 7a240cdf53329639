"""Models on this machine: in named folders, and in Hugging Face's cache; and what cannot be served.

Neither torch nor huggingface_hub is needed: only names and config.json are looked at.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from muxcluster.cli.found.names import served_name
from muxcluster.config.facts import read_facts
from muxcluster.core.errors import LoadError
from muxcluster.core.inputs.json_file import read_json_object
from muxcluster.placement.hardware import GIB

GGUF = "GGUF files are not served: name the model's own directory or id, with safetensors"
_MOST_DEPTH = 4  # folders below a named one
# Classes that generate text from a prompt alone
_GENERATING = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
_ITEMSIZE = 2


@dataclass(frozen=True, slots=True)
class Model:
    """A model that can be served, as far as its files say."""

    name: str
    path: str  # a directory or a Hugging Face id
    note: str = ""  # its size, if that is known
    keys: Mapping[str, Any] = field(default_factory=dict)  # further ones of its section


@dataclass(frozen=True, slots=True)
class Unserved:
    """Something that looks like a model and cannot be served."""

    what: str
    why: str


Found = Model | Unserved


def examined(directory: Path, path: str = "") -> Found:
    """Return the model in `directory`; path: its id, if it has one."""
    path = path or str(directory.resolve())
    try:
        facts = read_facts(directory)
        classes = read_json_object(directory / "config.json").get("architectures")
    except LoadError as error:
        return Unserved(path, error.reason)
    if isinstance(classes, list) and not any(str(name).endswith(_GENERATING) for name in classes):
        return Unserved(path, f"{', '.join(map(str, classes))} generates no text")
    if not any(directory.glob("*.safetensors")):
        has_gguf = any(directory.glob("*.gguf"))
        return Unserved(path, GGUF if has_gguf else "it has no weights in safetensors")
    shape = facts.shape
    size = f"{shape.num_params / 1e9:.2f} B parameters"
    weights = f"{shape.num_params * _ITEMSIZE / GIB:.1f} GiB in 16 bits"
    note = f"{size}, {weights}, context {facts.max_context:,}"
    return Model(served_name(path), path, note)


def models_below(folder: Path) -> Iterator[Found]:
    """Yield the models in `folder` and the folders below it, and its GGUF files.

    Hidden folders and those of installed packages are not looked into.
    """
    yield from _below(folder, _MOST_DEPTH)


def _below(folder: Path, depth: int) -> Iterator[Found]:
    if (folder / "config.json").is_file():
        yield examined(folder)
        return
    try:
        entries = sorted(folder.iterdir())
    except OSError:
        return
    for entry in entries:
        if entry.suffix.lower() == ".gguf":
            yield Unserved(str(entry), GGUF)
        elif depth and entry.is_dir() and entry.name[0] != "." and entry.name != "site-packages":
            yield from _below(entry, depth - 1)


def cached_models(environment: Mapping[str, str] = os.environ) -> Iterator[Found]:
    """Yield the models of Hugging Face's cache whose default branch is there."""
    for folder in sorted(_cache(environment).glob("models--*--*")):
        path = folder.name.removeprefix("models--").replace("--", "/", 1)
        try:
            commit = (folder / "refs" / "main").read_text().strip()
        except OSError:
            continue
        snapshot = folder / "snapshots" / commit
        if (snapshot / "config.json").is_file():
            yield examined(snapshot, path)
        elif any(snapshot.glob("*.gguf")):
            yield Unserved(path, GGUF)


def _cache(environment: Mapping[str, str]) -> Path:
    """Return the cache's folder, found as huggingface_hub finds it."""
    if given := environment.get("HF_HUB_CACHE"):
        return Path(given).expanduser()
    general = environment.get("XDG_CACHE_HOME", "~/.cache")
    home = environment.get("HF_HOME") or os.path.join(general, "huggingface")
    return Path(home).expanduser() / "hub"
