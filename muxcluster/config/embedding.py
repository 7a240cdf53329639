"""Which models of Hugging Face directories give embeddings, and how: sentence-transformers' files.

modules.json lists what is applied one after the other: the model, what makes one vector of the
hidden states of its tokens (pooling), and whether that gets length 1.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from muxcluster.core.errors import LoadError
from muxcluster.core.inputs.json_file import read_json_list, read_json_object
from muxcluster.core.served import EmbeddingOutput

MODULES = "modules.json"
_LENGTH_FILE = "sentence_bert_config.json"
_MODE = "pooling_mode"
# of decoders and of encoders, and what else the files call them
_LAST_TOKEN, _OF_ENCODERS = ("lasttoken",), ("cls", "mean")
_NAMES = {"cls_token": "cls", "mean_tokens": "mean"}
_KINDS = ["Transformer", "Pooling"]
_NORMALIZE = "Normalize"

Task = Literal["auto", "generate", "embed", "score"]


def embedding_of(
    directory: Path | None, size: int, task: Task, *, is_encoder: bool = False
) -> EmbeddingOutput | None:
    """Return what the model answers with if it gives embeddings; None: it generates.

    directory: None for a model without one. size: of its hidden states. task: `models[].task`;
    "auto" is "embed" where there is a modules.json. Raises LoadError naming the file that cannot
    be read, or asks for what is not served; for an encoder also if nothing says how it pools.
    """
    has_modules = directory is not None and (directory / MODULES).is_file()
    if task == "generate" or (task == "auto" and not has_modules):
        return None
    if directory is None:
        return EmbeddingOutput(size)
    if is_encoder and not has_modules:
        raise LoadError(directory / MODULES, "no such file, which says how an encoder pools")
    pooling, is_normalised = _LAST_TOKEN[0], True
    if has_modules:
        pooling, is_normalised = _pooled(directory, _OF_ENCODERS if is_encoder else _LAST_TOKEN)
    sizes = _shorter_sizes(directory / "config.json")
    return EmbeddingOutput(size, pooling, is_normalised, sizes is None, sizes or ())


def longest_input(directory: Path) -> int | None:
    """Return the most tokens that sentence-transformers gives the model, None: as many as it takes.

    Raises LoadError naming the file that cannot be read.
    """
    file = directory / _LENGTH_FILE
    value = read_json_object(file).get("max_seq_length") if file.is_file() else None
    return value if type(value) is int and value > 0 else None


def _pooled(directory: Path, served: Sequence[str]) -> tuple[str, bool]:
    """Check the modules; return the pooling, one of `served`, and whether the last normalises."""
    file = directory / MODULES
    modules = list(_modules(file))
    kinds = [kind for kind, _ in modules]
    if kinds[:2] != _KINDS or kinds[2:] not in ([], [_NORMALIZE]):
        raise LoadError(
            file,
            f"asks for {', '.join(kinds) or 'no module'}; served are Transformer, Pooling and, if "
            "vectors have length 1, Normalize (models[].task generate serves the model's text)",
        )
    return _pooling(directory / modules[1][1] / "config.json", served), len(kinds) > 2


def _modules(file: Path) -> Iterator[tuple[str, str]]:
    """Yield kind and folder of each module."""
    for module in read_json_list(file):
        kind = module.get("type") if isinstance(module, dict) else None
        folder = module.get("path", "") if isinstance(module, dict) else None
        if not isinstance(kind, str) or not isinstance(folder, str) or Path(folder).name != folder:
            raise LoadError(file, f"{module!r:.80} is no module of a type and a folder")
        yield kind.rpartition(".")[2], folder


def _pooling(file: Path, served: Sequence[str]) -> str:
    """Return how the vector is made of hidden states. Raises LoadError unless it is `served`."""
    config = read_json_object(file)
    named = [
        name.removeprefix(f"{_MODE}_")
        for name, value in config.items()
        if name.startswith(f"{_MODE}_") and value is True
    ]
    given = config.get(_MODE, named)
    modes = [str(mode) for mode in given] if isinstance(given, list) else [str(given)]
    modes = [_NAMES.get(mode, mode) for mode in modes]
    if len(modes) != 1 or modes[0] not in served:
        asked, known = ", ".join(modes) or "nothing", " and ".join(served)
        raise LoadError(file, f"pools by {asked:.80}; served for this type of model: {known}")
    return modes[0]


def _shorter_sizes(file: Path) -> tuple[int, ...] | None:
    """Return the sizes to which vectors may be cut, None: any, by vLLM's keys of config.json."""
    config: Mapping[str, Any] = read_json_object(file)
    sizes = config.get("matryoshka_dimensions") or []
    if not isinstance(sizes, list) or any(type(size) is not int for size in sizes):
        message = f"matryoshka_dimensions is {sizes!r:.80}, expected a list of integers"
        raise LoadError(file, message)
    return None if not sizes and config.get("is_matryoshka") is True else tuple(sorted(sizes))
