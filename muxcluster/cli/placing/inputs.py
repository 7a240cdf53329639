"""Inputs beside the configuration: a profile, and for `place` the reference's curves."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

import muxcluster
from muxcluster.config.load import Config
from muxcluster.config.planner_input import profile_paths
from muxcluster.config.profiles import is_published, read_profile
from muxcluster.core.errors import ConfigError

# Option `--profile` of all commands that predict times.
ProfileOption = Annotated[
    Path | None,
    typer.Option(
        help="Measured seconds to predict from, of `muxcluster profile` or MuxServe's table. "
        "Example: --profile a100.json"
    ),
]
DATA_VARIABLE = "MUXCLUSTER_DATA"
_CURVES = Path("muxserve") / "llama_a100_profile.json"
_SHARED = Path("..") / "shared" / "data"


def with_profile(config: Config, profile: Path) -> Config:
    """Return the configuration with this profile first. Raises ConfigError if it is no profile."""
    try:
        read_profile(profile)
    except ValueError as error:
        raise ConfigError(profile, "", str(error)) from error
    listed = [str(profile.absolute()), *config.cluster.profiles]
    return replace(config, cluster=config.cluster.model_copy(update={"profiles": listed}))


def curves_file(config: Config, profile: Path | None) -> Path:
    """Return MuxServe's published table for method compat: `profile`, else the file's own, else one
    in the data folders.

    Raises ConfigError if none is found, or `profile` is another one.
    """
    if profile is not None:
        if not _is_published(profile):
            message = "method compat needs MuxServe's published table, which this is not"
            raise ConfigError(profile, "", message)
        return profile
    for path in profile_paths(config):
        if _is_published(path):
            return path
    places = [folder / _CURVES for folder in _data_folders()]
    for path in places:
        if path.is_file():
            return path
    looked = ", ".join(str(path) for path in places)
    message = f"method compat needs {_CURVES.name}: give --profile FILE; looked for {looked}"
    raise ConfigError(config.file, "", message)


def _data_folders() -> list[Path]:
    """Return the data folders in the order in which they are tried."""
    named = os.environ.get(DATA_VARIABLE)
    package = Path(muxcluster.__file__).resolve().parent
    folders = [Path(named)] if named else []
    return [*folders, Path.cwd() / _SHARED, package.parent / _SHARED]


def _is_published(path: Path) -> bool:
    try:
        return is_published(path)
    except ValueError as error:
        raise ConfigError(path, "", str(error)) from error
