"""Loads one rank's part of a model; no rank ever holds all of it."""

from pathlib import Path

from torch import nn
from transformers import PretrainedConfig

from muxcluster.core.unitspec import ModelSpec
from muxcluster.engine.load.division.division import connect, divide
from muxcluster.engine.load.division.group import RankGroup
from muxcluster.engine.load.division.stored_weights import WeightFiles
from muxcluster.engine.load.dummy import DummyWeights
from muxcluster.engine.load.filling import WeightSource, fill
from muxcluster.engine.load.skeleton import skeleton
from muxcluster.engine.load.weights import check_weight_files, tensors_by_file


def load_part(
    config: PretrainedConfig, spec: ModelSpec, device: str, group: RankGroup
) -> nn.Module:
    """Return this rank's part of the model on `device`, joined to the others' by `group`.

    Raises LoadError as `divide`, and naming the file that is missing, broken or lacks a tensor.
    """
    directory = Path(spec.path)
    model = skeleton(config, spec)
    division = divide(model, directory / "config.json", group)
    source: WeightSource
    if spec.load_format == "dummy":
        source = DummyWeights(spec.seed, device)
    else:
        file = check_weight_files(directory)
        source = WeightFiles(file, tensors_by_file(file), str(model.base_model_prefix))
    fill(model, source, device, division.parts)
    connect(model, division, group)
    return model
