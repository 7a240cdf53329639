"""Facts from a model's directory: shape, vocabulary, end tokens, longest context."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from muxcluster.core.errors import LoadError
from muxcluster.core.inputs.json_file import read_json_object
from muxcluster.core.kvshape import KvDtype
from muxcluster.core.served import EmbeddingOutput, ScoreOutput
from muxcluster.placement.shapes.families import (
    is_encoder,
    num_lost_positions,
    runs_dense,
    takes_images,
    undivided,
    undivided_shape,
)
from muxcluster.placement.shapes.known import shape_named
from muxcluster.placement.shapes.shape import ModelShape, ShapeError
from muxcluster.placement.shapes.weight_format import QUANTIZE, QUANTIZE_HEAD

_LENGTH_DEPENDENT_ROPE = frozenset({"dynamic", "longrope", "su"})


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Facts of one model."""

    shape: ModelShape
    eos_token_ids: tuple[int, ...]
    dtype: str  # of its stored weights; what config.json does not say is assumed
    max_context: int  # most tokens of a sequence
    undivided: str = ""  # why it cannot be divided over GPUs, "" if it can, sizes aside
    is_dense: bool = False  # it runs on the dense backend alone
    is_encoder: bool = False  # it gives embeddings and nothing else
    takes_images: bool = False  # in chats
    is_rounded: bool = False  # ordinary weights, quantised whenever they are loaded
    # embedding, scoring: None for both: it generates text
    embedding: EmbeddingOutput | None = None
    scoring: ScoreOutput | None = None


def read_facts(directory: Path) -> ModelFacts:
    """Read config.json and generation_config.json; the latter's end tokens take precedence.

    Raises LoadError, naming the file, also if the weights are quantised in a way that no backend
    runs.
    """
    config = read_json_object(directory / "config.json")
    try:
        shape = ModelShape.from_hf_config(config)
        check_quantised(shape, is_dense=runs_dense(config) or is_encoder(config))
        text = config.get("text_config") or config
        max_context = _max_context(text, shape.max_position) - num_lost_positions(config)
    except ShapeError as error:
        raise LoadError(directory / "config.json", str(error)) from error
    file = directory / "generation_config.json"
    generation = read_json_object(file) if file.is_file() else {}
    end = generation.get("eos_token_id")
    if end is None:
        file, end = directory / "config.json", text.get("eos_token_id")
    dtype = text.get("dtype") or text.get("torch_dtype") or _unsaid_dtype(shape)
    return ModelFacts(
        shape,
        _ids(end, file),
        str(dtype),
        max_context,
        undivided(config),
        is_dense=runs_dense(config),
        is_encoder=is_encoder(config),
        takes_images=takes_images(config),
    )


def quantised(facts: ModelFacts, quantize: str) -> ModelFacts:
    """Return the facts of the model with the weights that `models[].quantize` asks for.

    Raises ShapeError if they cannot be served, or the checkpoint's are quantised otherwise.
    """
    stored, asked = facts.shape.weights, QUANTIZE.get(quantize)
    if asked is None or (stored is not None and stored.kind == asked.kind):
        return facts
    if stored is not None:
        raise ShapeError(f"the checkpoint's weights are quantised already: {stored.name}")
    head = None if facts.shape.tied_embeddings else QUANTIZE_HEAD[quantize]
    shape = replace(facts.shape, weights=asked, head=head)
    check_quantised(shape, is_dense=facts.is_dense or facts.is_encoder)
    return replace(facts, shape=shape, is_rounded=True)


def with_kv_dtype(facts: ModelFacts, kv_dtype: KvDtype) -> ModelFacts:
    """Return the facts of the model with keys and values stored as `models[].kv_dtype` asks.

    Raises ShapeError if they cannot be.
    """
    shape = facts.shape
    if kv_dtype == shape.kv_dtype:
        return facts
    if kv_dtype != "auto" and facts.is_encoder:
        raise ShapeError("an encoder keeps no keys and values")
    if kv_dtype != "auto" and (facts.is_dense or shape.num_state_layers):
        reason = (
            "the dense backend, which this type of model needs"
            if facts.is_dense
            else "a model with states"
        )
        raise ShapeError(f"{reason}, keeps keys and values in the model's dtype alone")
    if kv_dtype != "auto" and shape.latent is not None:
        raise ShapeError("latent attention keeps latents in the model's dtype alone")
    if kv_dtype == "int8" and shape.head_dim % 4:
        raise ShapeError(f"int8 needs a head_dim that is a multiple of 4, not {shape.head_dim}")
    return replace(facts, shape=replace(shape, kv_dtype=kv_dtype))


def check_quantised(shape: ModelShape, *, is_dense: bool) -> None:
    """Raise ShapeError if the shape has quantised weights that no backend runs."""
    if shape.weights is not None and is_dense:
        raise ShapeError("the backend that this type of model needs runs no such weights")
    is_whole = shape.weights is not None and not shape.weights.of_experts
    if is_whole and shape.num_experts > 1:
        raise ShapeError("quantised weights of a mixture of experts cannot be served")
    if shape.weights is not None and shape.latent is not None:
        raise ShapeError("quantised weights of latent attention cannot be served")
    if shape.weights is not None and shape.num_state_layers:
        raise ShapeError("quantised weights of a model with states cannot be served")


def known_facts(name: str) -> ModelFacts:
    """Return the facts of a well-known shape. Raises ShapeError with the nearest names."""
    shape = shape_named(name)
    return ModelFacts(shape, (), "bfloat16", shape.max_position, undivided_shape(name))


def _unsaid_dtype(shape: ModelShape) -> str:
    """Return the dtype of weights whose config.json does not say it."""
    is_mxfp4 = shape.weights is not None and shape.weights.kind == "mxfp4"
    return "bfloat16" if is_mxfp4 else "float32"  # of the other weights of gpt-oss


def _max_context(text: Mapping[str, Any], longest: int) -> int:
    """Limit the context of rotary kinds that change with the length of the batch to where they do
    not: a request's output must not depend on its neighbours. Raises ShapeError."""
    rope = text.get("rope_parameters") or text.get("rope_scaling") or {}
    if not isinstance(rope, Mapping):
        raise ShapeError(f"rope_parameters is {rope!r:.80}, expected an object")
    if str(rope.get("rope_type") or rope.get("type")) not in _LENGTH_DEPENDENT_ROPE:
        return longest
    key = "original_max_position_embeddings"
    original = rope.get(key) or text.get(key)
    return min(longest, original) if isinstance(original, int) and original > 0 else longest


def _ids(value: Any, file: Path) -> tuple[int, ...]:
    """An end token is written as one id, a list of ids or null."""
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(token, int) and abs(token) < 2**31 for token in ids):
        message = f"eos_token_id is {value!r:.80}, expected an integer or a list of them"
        raise LoadError(file, message)
    return tuple(ids)
