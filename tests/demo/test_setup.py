"""The demo's models: three families, made once per seed, and a file that the server accepts."""

from pathlib import Path

import pytest

from muxcluster.config.load import load_config
from muxcluster.config.planning import plan_for
from muxcluster.config.units import unit_specs
from muxcluster.demo.setup import MODELS, build_models, expected_loads, write_config
from muxcluster.demo.workload import BurstSize, Scale, make_burst


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Path]]:
    directory = tmp_path_factory.mktemp("demo")
    return directory, build_models(directory / "models", seed=3)


def test_the_models_differ_in_family_and_shape() -> None:
    assert len({model.family for model in MODELS}) == 3
    assert {model.fields["head_dim"] for model in MODELS} == {64, 128}
    assert len({model.fields["num_hidden_layers"] for model in MODELS}) == 3


def test_models_are_kept_for_their_seed(made: tuple[Path, list[Path]]) -> None:
    directory, paths = made
    weights = paths[0] / "model.safetensors"
    before = weights.stat().st_mtime_ns, weights.read_bytes()
    build_models(directory / "models", seed=3)
    assert (weights.stat().st_mtime_ns, weights.read_bytes()) == before


def test_the_file_makes_one_unit_of_all_three(made: tuple[Path, list[Path]]) -> None:
    directory, paths = made
    burst = make_burst([model.name for model in MODELS], BurstSize(), Scale(), None)
    loads = expected_loads(burst)
    assert sum(load.rate for load in loads) == pytest.approx(3.0)
    config = load_config(write_config(directory, paths, loads))
    (unit,) = unit_specs(config, plan_for(config))
    assert {model.name for model in unit.models} == {model.name for model in MODELS}
    # The longest request of the burst fits, and the pool is small enough to be contended.
    assert all(model.max_model_len >= 2 * 160 + 60 for model in unit.models)
    assert unit.num_blocks * unit.block_bytes < 32 * 2**20
