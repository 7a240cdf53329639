"""Checks a model's files, and finds out its backend, without reading its weights."""

from dataclasses import dataclass
from pathlib import Path

import torch

from muxcluster.core.backends import DENSE, ENCODER, ModelBackend, paged_backend
from muxcluster.core.unitspec import ModelSpec
from muxcluster.engine.forward.attention import LayerCall
from muxcluster.engine.load.hf_config import NotPaged, any_config, read_config
from muxcluster.engine.load.paged_loading import check_load_format
from muxcluster.engine.load.probe import probe
from muxcluster.engine.load.quiet import quiet_loading
from muxcluster.engine.load.skeleton import skeleton
from muxcluster.engine.load.weights import check_weight_files


@dataclass(frozen=True, slots=True)
class Shown:
    """What a model shows without its weights."""

    backend: ModelBackend
    calls: tuple[LayerCall, ...]  # of its layers


def shown_by(spec: ModelSpec) -> Shown | None:
    """Return the paged backend, where a model without data passes its probe.

    Returns None where only loading tells: the model may run on the dense backend, or its forward
    depends on data. Imports the model's code, so a later load in a fork of this process need not.
    Raises LoadError naming a file that is missing, cut off, or no configuration; ValueError for an
    unknown load_format.
    """
    check_load_format(spec)
    directory = Path(spec.path)
    if spec.load_format != "dummy":
        check_weight_files(directory)
    if spec.backend in (DENSE, ENCODER):
        any_config(directory, trust_remote_code=spec.trust_remote_code)
        return None
    try:
        config = read_config(
            directory,
            trust_remote_code=spec.trust_remote_code,
            has_states=spec.state_columns > 0,
        )
        with quiet_loading():
            model = skeleton(config, spec).to(torch.device("meta")).eval()
            calls = probe(model, spec, directory / "config.json")
    except NotPaged:
        return None
    windows = [call.sliding_window for call in calls]
    is_unordered = not any(windows)
    backend = paged_backend(
        spec.name, windows, is_unordered=is_unordered, state_columns=spec.state_columns
    )
    return Shown(backend, calls)
