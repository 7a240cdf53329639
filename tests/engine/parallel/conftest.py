"""Tiny real models for tests of tensor parallelism, built once a session."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from muxcluster.demo.models import build_model

ModelBuilder = Callable[..., Path]


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> ModelBuilder:
    """(name, family, **overrides of `build_model`) -> directory of that name."""
    root = tmp_path_factory.mktemp("tiny")

    def of(name: str, family: str, **overrides: object) -> Path:
        directory = root / name
        if directory.exists():
            return directory
        return build_model(directory, family, seed=len(name), **overrides)

    return of


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """The machine is shared."""
    torch.set_num_threads(1)
