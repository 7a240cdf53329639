"""Tiny real models, built once a session and shared by the engine's tests."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from muxcluster.demo.models import build_model
from tests.oracles import GreedyOracle

ModelBuilder = Callable[[str], Path]


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> ModelBuilder:
    """Directory of a tiny random model of a family; built on first use."""
    root = tmp_path_factory.mktemp("models")
    built: dict[str, Path] = {}

    def of(family: str) -> Path:
        if family not in built:
            built[family] = build_model(root / family, family, seed=len(family))
        return built[family]

    return of


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two models that share a pool: blocks of 16 and of 8 tokens, columns of 6 and of 8 blocks."""
    root = tmp_path_factory.mktemp("models")
    return {
        "narrow": build_model(root / "narrow", "llama", seed=1),
        "wide": build_model(root / "wide", "opt", seed=2, head_dim=128),
    }


@pytest.fixture(scope="module")
def oracles(directories: Mapping[str, Path]) -> dict[str, GreedyOracle]:
    return {name: GreedyOracle(path) for name, path in directories.items()}
