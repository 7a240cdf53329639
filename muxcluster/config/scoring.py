"""Which encoders score pairs of texts: cross-encoders, by their config.json."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from muxcluster.core.errors import LoadError
from muxcluster.core.inputs.json_file import read_json_object
from muxcluster.core.served import ScoreOutput

_CLASSIFIER = "ForSequenceClassification"
_SIGMOID, _IDENTITY = "Sigmoid", "Identity"


def scoring_of(directory: Path, task: str) -> ScoreOutput | None:
    """Return what an encoder answers with if it scores pairs of texts, else None.

    task: `models[].task`; "auto" is "score" where `architectures` names a classifier. Raises
    LoadError naming config.json if it scores in a way that is not served.
    """
    file = directory / "config.json"
    config = read_json_object(file)
    names = config.get("architectures")
    is_classifier = isinstance(names, list) and any(str(n).endswith(_CLASSIFIER) for n in names)
    if task not in ("auto", "score") or (task == "auto" and not is_classifier):
        return None
    if not is_classifier:
        raise LoadError(file, f"architectures names no model {_CLASSIFIER}, so nothing scores")
    labels = config.get("id2label")
    num_labels = len(labels) if isinstance(labels, Mapping) else config.get("num_labels", 2)
    if num_labels != 1:
        raise LoadError(file, f"has {num_labels!r:.20} labels; models that score pairs have one")
    kinds = config.get("type_vocab_size", 1)
    if kinds != 1:
        raise LoadError(file, "tells the two texts apart by token types, which is not served")
    activation = _activation(config)
    if activation not in (_SIGMOID, _IDENTITY):
        raise LoadError(file, f"activation {activation:.80}: {_SIGMOID} and {_IDENTITY} are served")
    return ScoreOutput(is_sigmoid=activation == _SIGMOID)


def _activation(config: Mapping[str, Any]) -> str:
    """Return the function on a model's output, by sentence-transformers' keys."""
    own = config.get("sentence_transformers")
    named = own.get("activation_fn") if isinstance(own, Mapping) else None
    found = named or config.get("sbert_ce_default_activation_function") or _SIGMOID
    return str(found).rpartition(".")[2]
