"""Checks an adapter's files against a base that is not loaded in this process."""

import hashlib
from functools import lru_cache
from pathlib import Path

from torch import nn

from muxcluster.core.errors import LoadError
from muxcluster.core.inputs.adapter_files import CONFIG, read_adapter
from muxcluster.core.inputs.adapter_load import AdapterCheck
from muxcluster.core.unitspec import ModelSpec
from muxcluster.engine.adapters.low_rank import read_pairs
from muxcluster.engine.adapters.places import check_ranks, placed_linears
from muxcluster.engine.adapters.weights import check_fits
from muxcluster.engine.load.hf_config import DTYPES, read_config
from muxcluster.engine.load.quiet import quiet_loading
from muxcluster.engine.load.skeleton import skeleton

_VERSION_CHARS = 16


def check_adapter(spec: ModelSpec, path: str) -> AdapterCheck:
    """Return the version of the adapter in `path`, or why `spec` cannot take it while it runs.

    All of its numbers are read. Takes seconds for the first adapter of a model.
    """
    if not spec.adapter_places:
        return AdapterCheck(problem=f"{spec.name} has no models[].adapter_places")
    try:
        files = read_adapter(Path(path))
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
        return AdapterCheck(version=_digest(files.directory / CONFIG, files.weights))
    except LoadError as error:
        return AdapterCheck(problem=str(error))


@lru_cache(maxsize=8)
def _undivided(spec: ModelSpec) -> nn.Module:
    """Return the model without its numbers."""
    with quiet_loading():
        config = read_config(Path(spec.path), trust_remote_code=spec.trust_remote_code)
        return skeleton(config, spec)


def _digest(*files: Path) -> str:
    """Return a digest of the files' content. Raises LoadError for one that cannot be read."""
    digest = hashlib.sha256()
    for file in files:
        try:
            with file.open("rb") as content:
                digest.update(hashlib.file_digest(content, "sha256").digest())
        except OSError as error:
            raise LoadError(file, f"cannot be read: {error.strerror}") from error
    return digest.hexdigest()[:_VERSION_CHARS]
