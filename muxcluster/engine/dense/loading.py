"""Loads a model with its own attention and cache, and finds out how its rows may be batched."""

from pathlib import Path

import torch

from muxcluster.core.errors import LoadError
from muxcluster.core.unitspec import ModelSpec
from muxcluster.engine.dense.model import DenseModel, NotDense
from muxcluster.engine.dummy import DummyWeights
from muxcluster.engine.filling import fill, whole
from muxcluster.engine.hf_config import any_config
from muxcluster.engine.loading import check_load_format, read_weights
from muxcluster.engine.packing_cpu import pack_linears
from muxcluster.engine.quiet import quiet_loading
from muxcluster.engine.skeleton import skeleton


def load_dense(spec: ModelSpec, device: str) -> DenseModel:
    """The model in `spec.path` on `device` in `spec.dtype`, as `loading.load_model` reads it.

    Raises LoadError as that does, and where its rows cannot be batched.
    """
    check_load_format(spec)
    directory = Path(spec.path)
    config = any_config(directory, trust_remote_code=spec.trust_remote_code)
    with quiet_loading():
        if spec.load_format == "dummy":
            empty = skeleton(config, spec, None)
            model = fill(empty, DummyWeights(spec.seed, device), whole, device)
        else:
            model = read_weights(config, spec, None).to(device)
        model.eval().requires_grad_(False)
        if torch.device(device).type == "cpu":
            pack_linears(model)
        try:
            return DenseModel.of(model)
        except NotDense as error:
            message = f"this model cannot be re-batched: {error}"
            raise LoadError(directory / "config.json", message) from error
