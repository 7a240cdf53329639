"""Which backend runs a model: paged where our attention can serve it, else dense; or encoder."""

import logging
from pathlib import Path

from torch import nn

from muxcluster.core.backends import ENCODER
from muxcluster.core.errors import LoadError
from muxcluster.core.unitspec import ModelSpec
from muxcluster.engine.dense.encoder import Encoder
from muxcluster.engine.dense.model import DenseModel
from muxcluster.engine.load.dense_loading import load_dense, load_encoder
from muxcluster.engine.load.division.group import RankGroup
from muxcluster.engine.load.hf_config import NotPaged, weight_format
from muxcluster.engine.load.paged_loading import load_model

logger = logging.getLogger(__name__)

BACKENDS = ("auto", "paged", "dense", "encoder")  # names that `ModelSpec.backend` may have


def load(
    spec: ModelSpec, device: str, group: RankGroup | None = None, *, is_checked: bool = False
) -> nn.Module | DenseModel | Encoder:
    """Load the model on its backend; log which and why.

    is_checked: as of `load_model`; a dense model is run all the same. Raises LoadError as
    `load_model` and `load_dense`, and if a dense model is to give embeddings, to be divided over
    ranks, or to keep keys and values in 8 bits; ValueError for an unknown backend.
    """
    if spec.backend not in BACKENDS:
        raise ValueError(f"unknown backend {spec.backend!r}: one of {', '.join(BACKENDS)}")
    if spec.backend == ENCODER:
        if group is not None:
            message = "encoders are not divided over GPUs"
            raise LoadError(Path(spec.path, "config.json"), message)
        encoder = load_encoder(spec, device)
        logger.info("%s: encoder backend: its tokens attend to later ones", spec.name)
        return encoder
    reason = "its configuration asks for it"
    if spec.backend != "dense":
        try:
            model = load_model(spec, device, group, is_checked=is_checked)
        except NotPaged as refusal:
            if spec.backend == "paged" or weight_format(spec) is not None:
                raise
            if spec.state_columns:  # blocks are planned for another layout than the dense one
                message = f"{refusal.reason}: set models[].backend to dense"
                raise LoadError(Path(spec.path, "config.json"), message) from refusal
            reason = refusal.reason
        else:
            logger.info("%s: paged backend: its layers use the attention interface", spec.name)
            if spec.state_columns:
                logger.info("%s: it keeps states, and so has no prefix cache", spec.name)
            return model
    _check_dense(spec, group, reason)
    dense = load_dense(spec, device)
    logger.info("%s: dense backend: %s", spec.name, reason)
    return dense


def _check_dense(spec: ModelSpec, group: RankGroup | None, reason: str) -> None:
    """Raise LoadError for what is asked of a model and the dense backend has not.

    reason: why the model needs that backend.
    """
    file = Path(spec.path, "config.json")
    if spec.embedding_size:
        message = "only the paged backend gives embeddings of decoders, and not of this model"
        raise LoadError(file, f"{message}: {reason}")
    if spec.kv_dtype != "auto":
        message = (
            f"kv_dtype {spec.kv_dtype} needs the paged backend; the dense one keeps keys and "
            f"values in the model's dtype: {reason}"
        )
        raise LoadError(file, message)
    if group is not None:
        message = f"only the paged backend divides a model over GPUs, and not this one: {reason}"
        raise LoadError(file, message)
