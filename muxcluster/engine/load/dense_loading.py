"""Loads a model with its own attention and cache, and finds out how its rows may be batched."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from muxcluster.core.errors import LoadError
from muxcluster.core.unitspec import ModelSpec
from muxcluster.engine.dense.forward import DenseForward
from muxcluster.engine.dense.model import DenseModel, NotDense
from muxcluster.engine.dense.padding import Padding
from muxcluster.engine.load.dummy import DummyWeights
from muxcluster.engine.load.filling import fill
from muxcluster.engine.load.hf_config import any_config, weight_format
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
