"""Tiny real models, built once a session and shared by the engine's tests."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch

from muxcluster.demo.models import build_model
from muxcluster.kernels.native.build import SWITCH
from tests.engine.children.preloaded import fast_children, preloaded
from tests.kernels.native.switch import without_native
from tests.oracles import GreedyOracle

__all__ = ["fast_children", "preloaded"]

ModelBuilder = Callable[..., Path]


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> ModelBuilder:
    """(family, **overrides of `build_model`) -> directory of a tiny random model; built once."""
    root = tmp_path_factory.mktemp("models")
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


@pytest.fixture(scope="session")
def directories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two models that share a pool: blocks of 16 and of 8 tokens, columns of 6 and of 8 blocks."""
    root = tmp_path_factory.mktemp("models")
    return {
        "narrow": build_model(root / "narrow", "llama", seed=1),
        "wide": build_model(root / "wide", "opt", seed=2, head_dim=128),
    }


@pytest.fixture(scope="session")
def oracles(directories: Mapping[str, Path]) -> dict[str, GreedyOracle]:
    return {name: GreedyOracle(path) for name, path in directories.items()}


@pytest.fixture
def torch_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """No C++ kernels, here and in child processes: a tape records what torch does, as a CUDA graph
    records what a GPU does, and these run on no GPU."""
    monkeypatch.setenv(SWITCH, "off")
    without_native(True, monkeypatch)
