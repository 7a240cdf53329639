"""Which models of Hugging Face directories give embeddings, and how: sentence-transformers' files.

modules.json lists what is applied one after the other: the model, what makes one vector of the
hidden states of its tokens (pooling), and whether that gets length 1.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from muxcluster.core.errors import LoadError
from muxcluster.core.inputs.json_file import read_json_list, read_json_object
from muxcluster.core.served import EmbeddingOutput

MODULES = "modules.json"
_LENGTH_FILE = "sentence_bert_config.json"
_LAST_TOKEN = "lasttoken"
_MODE = "pooling_mode"
_KINDS = ["Transformer", "Pooling"]
_NORMALIZE = "Normalize"

Task = Literal["auto", "generate", "embed"]


def embedding_of(directory: Path | None, size: int, task: Task) -> EmbeddingOutput | None:
    """Return what the model answers with if it gives embeddings; None: it generates.

    directory: None for a model without one. size: of its hidden states. task: `models[].task`;
    "auto" is "embed" where there is a modules.json. Raises LoadError naming the file that cannot
    be read, or asks for anything but the last token's hidden state.
    """
    has_modules = directory is not None and (directory / MODULES).is_file()
    if task == "generate" or (task == "auto" and not has_modules):
        return None
    if directory is None:
        return EmbeddingOutput(size)
    is_normalised = _is_normalised(directory) if has_modules else True
    sizes = _shorter_sizes(directory / "config.json")
    return EmbeddingOutput(size, is_normalised, sizes is None, sizes or ())


def longest_input(directory: Path) -> int | None:
    """Return the most tokens that sentence-transformers gives the model, None: as many as it takes.

    Raises LoadError naming the file that cannot be read.
    """
    file = directory / _LENGTH_FILE
    value = read_json_object(file).get("max_seq_length") if file.is_file() else None
    return value if type(value) is int and value > 0 else None


def _is_normalised(directory: Path) -> bool:
    """Check the modules; return whether the last one normalises."""
    file = directory / MODULES
    modules = list(_modules(file))
    kinds = [kind for kind, _ in modules]
    if kinds[:2] != _KINDS or kinds[2:] not in ([], [_NORMALIZE]):
        raise LoadError(
            file,
            f"asks for {', '.join(kinds) or 'no module'}; served are Transformer, Pooling and, if "
            "vectors have length 1, Normalize (models[].task generate serves the model's text)",
        )
    _check_pooling(directory / modules[1][1] / "config.json")
    return len(kinds) > 2


def _modules(file: Path) -> Iterator[tuple[str, str]]:
    """Yield kind and folder of each module."""
    for module in read_json_list(file):
        kind = module.get("type") if isinstance(module, dict) else None
        folder = module.get("path", "") if isinstance(module, dict) else None
        if not isinstance(kind, str) or not isinstance(folder, str) or Path(folder).name != folder:
            raise LoadError(file, f"{module!r:.80} is no module of a type and a folder")
        yield kind.rpartition(".")[2], folder


def _check_pooling(file: Path) -> None:
    """Raise LoadError unless the vector is the last token's hidden state."""
    config = read_json_object(file)
    named = [
        name.removeprefix(f"{_MODE}_")
        for name, value in config.items()
        if name.startswith(f"{_MODE}_") and value is True
    ]
    given = config.get(_MODE, named)
    modes = [str(mode) for mode in given] if isinstance(given, list) else [str(given)]
    if modes != [_LAST_TOKEN]:
        asked = ", ".join(modes) or "nothing"
        raise LoadError(file, f"pools by {asked:.80}; only {_LAST_TOKEN} is served")


def _shorter_sizes(file: Path) -> tuple[int, ...] | None:
    """Return the sizes to which vectors may be cut, None: any, by vLLM's keys of config.json."""
    config: Mapping[str, Any] = read_json_object(file)
    sizes = config.get("matryoshka_dimensions") or []
    if not isinstance(sizes, list) or any(type(size) is not int for size in sizes):
        message = f"matryoshka_dimensions is {sizes!r:.80}, expected a list of integers"
        raise LoadError(file, message)
    return None if not sizes and config.get("is_matryoshka") is True else tuple(sorted(sizes))
