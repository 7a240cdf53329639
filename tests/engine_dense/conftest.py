"""Tiny real models, built once a session and shared by the tests of the dense backend."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from muxcluster.demo.models import build_model

ModelBuilder = Callable[[str], Path]


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> ModelBuilder:
    """Directory of a tiny random model of a family; built on first use."""
    root = tmp_path_factory.mktemp("tiny")
    built: dict[str, Path] = {}

    def of(family: str) -> Path:
        if family not in built:
            built[family] = build_model(root / family, family, seed=len(family))
        return built[family]

    return of


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """The machine is shared; and a runner sets the number of threads of its process."""
    torch.set_num_threads(1)
