"""Tiny real models, built once a session and shared by the tests of the engine's model side."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from muxcluster.demo.models import build_model

ModelBuilder = Callable[..., Path]


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> ModelBuilder:
    """Directory of a tiny random model of a family; overrides as in `build_model`."""
    root = tmp_path_factory.mktemp("tiny")
    built: dict[str, Path] = {}

    def of(family: str, **overrides: object) -> Path:
        name = "-".join([family, *(f"{k}={v}" for k, v in sorted(overrides.items()))])
        if name not in built:
            built[name] = build_model(root / name, family, seed=len(name), **overrides)
        return built[name]

    return of


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """The machine is shared; and a runner sets the number of threads of its process."""
    torch.set_num_threads(1)
