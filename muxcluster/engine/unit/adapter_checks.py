"""Checks an adapter's files against a base that is not loaded in this process."""

from functools import lru_cache
from pathlib import Path

from torch import nn

from muxcluster.core.errors import LoadError
from muxcluster.core.inputs.adapters.files import read_adapter
from muxcluster.core.inputs.adapters.load import AdapterCheck
from muxcluster.core.unitspec import ModelSpec
from muxcluster.engine.adapters.low_rank import read_pairs, version_of
from muxcluster.engine.adapters.places import check_ranks, placed_linears
from muxcluster.engine.adapters.weights import check_fits
from muxcluster.engine.load.hf_config import DTYPES, read_config
from muxcluster.engine.load.quiet import quiet_loading
from muxcluster.engine.load.skeleton import skeleton


def check_adapter(spec: ModelSpec, path: str) -> AdapterCheck:
    """Return the version of the adapter in `path`, or why `spec` cannot take it while it runs.

    All of its numbers are read. Takes seconds for the first adapter of a model.
    """
    if not spec.adapter_places:
        return AdapterCheck(problem=f"{spec.name} has no models[].adapter_places")
    try:
        files = read_adapter(Path(path))
        version = version_of(files)
        model = _undivided(spec)
        check_fits(files, model, spec.name)
        check_ranks(files, spec.adapter_rank, spec.name)
        placed = {name for name, *_ in placed_linears(model)}
        for each in files.modules:
            if each.module not in placed:
                message = (
                    f"tensor {each.down}: adapters that come later cannot change {each.module}"
                )
                raise LoadError(files.weights, message)
        read_pairs(files, DTYPES[spec.dtype], {})
        if version_of(files) != version:
            raise LoadError(files.weights, "has changed while it was read: load it again")
        return AdapterCheck(version=version)
    except LoadError as error:
        return AdapterCheck(problem=str(error))


@lru_cache(maxsize=8)
def _undivided(spec: ModelSpec) -> nn.Module:
    """Return the model without its numbers."""
    with quiet_loading():
        config = read_config(Path(spec.path), trust_remote_code=spec.trust_remote_code)
        return skeleton(config, spec)
