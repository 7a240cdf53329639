"""Loads models with attention and cache of their own, whose rows are batched, and encoders."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AutoModel, AutoModelForSequenceClassification

from muxcluster.core.errors import LoadError
from muxcluster.core.unitspec import ModelSpec
from muxcluster.engine.dense.encoder import SCORE, Encoder
from muxcluster.engine.dense.forward import DenseForward
from muxcluster.engine.dense.model import DenseModel, NotDense
from muxcluster.engine.dense.padding import Padding
from muxcluster.engine.load.dummy import DummyWeights
from muxcluster.engine.load.filling import fill
from muxcluster.engine.load.hf_config import DTYPES, any_config, weight_format
from muxcluster.engine.load.packing_cpu import pack_linears
from muxcluster.engine.load.paged_loading import check_load_format, read_weights
from muxcluster.engine.load.parity import check_logits
from muxcluster.engine.load.quiet import quiet_loading
from muxcluster.engine.load.skeleton import skeleton

_NUM_TOKENS = 4


def load_dense(spec: ModelSpec, device: str) -> DenseModel:
    """Return the model in `spec.path` on `device` in `spec.dtype`, read as by `load_model`.

    Raises LoadError as that does, and naming config.json if its rows cannot be batched, or its
    weights are quantised or to be.
    """
    check_load_format(spec)
    directory = Path(spec.path)
    if weight_format(spec) is not None:
        raise LoadError(directory / "config.json", "the dense backend runs no quantised weights")
    config = any_config(directory, trust_remote_code=spec.trust_remote_code)
    with quiet_loading():
        if spec.load_format == "dummy":
            empty = skeleton(config, spec, None)
            model = fill(empty, DummyWeights(spec.seed, device), device)
        else:
            model = read_weights(config, spec, None).to(device)
        model.eval().requires_grad_(False)
        if torch.device(device).type == "cpu":
            pack_linears(model)
        try:
            return DenseModel.of(model)
        except NotDense as error:
            # else NaN would look like an effect of padding
            check_logits(_plain_logits(model), spec)
            message = f"this model cannot be re-batched: {error}"
            raise LoadError(directory / "config.json", message) from error


@torch.inference_mode()
def _plain_logits(model: nn.Module) -> Tensor:
    """Return fp32 [1, vocab] after a few tokens; zeros if the model cannot even run those."""
    tokens = np.ones((1, _NUM_TOKENS), dtype=np.int64)
    try:
        return DenseForward(model).run(tokens, Padding.of([_NUM_TOKENS]), None).logits
    except Exception:  # noqa: BLE001 - foreign code; the caller finds out why it fails
        return torch.zeros(1, 1)


def load_encoder(spec: ModelSpec, device: str) -> Encoder:
    """Return the encoder in `spec.path` on `device` in `spec.dtype`.

    Raises LoadError as `load_dense`, and if its vectors are of another size or not finite.
    """
    check_load_format(spec)
    file = Path(spec.path, "config.json")
    if weight_format(spec) is not None:
        raise LoadError(file, "encoders run no quantised weights")
    config = any_config(file.parent, trust_remote_code=spec.trust_remote_code)
    kind = AutoModelForSequenceClassification if spec.pooling == SCORE else AutoModel
    with quiet_loading():
        if spec.load_format == "dummy":
            with torch.random.fork_rng([]):
                torch.default_generator.manual_seed(spec.seed)
                model = kind.from_config(config, dtype=DTYPES[spec.dtype]).to(device)
        else:
            model = read_weights(config, spec, None, kind).to(device)
        model.eval().requires_grad_(False)
        if torch.device(device).type == "cpu":
            pack_linears(model)
    encoder = Encoder(spec.name, model, spec.pooling)
    _check_encoder(encoder, spec, device)
    return encoder


@torch.inference_mode()
def _check_encoder(encoder: Encoder, spec: ModelSpec, device: str) -> None:
    tokens = torch.ones((1, _NUM_TOKENS), dtype=torch.int64, device=device)
    vectors = encoder.embed(tokens, torch.ones_like(tokens, dtype=torch.bool))
    if vectors.shape[1] != spec.embedding_size:
        message = f"its vectors have {vectors.shape[1]} numbers, not {spec.embedding_size}"
        raise LoadError(Path(spec.path, "config.json"), message)
    check_logits(vectors, spec)
