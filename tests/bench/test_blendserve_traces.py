"""BlendServe's workloads have the sharing and the density that they are named after."""

import numpy as np
import pytest

from bench.offline.blending.traces import GRID, TRACES, Mix, kind_summary, kinds_of, trace
from bench.traces.batchmix import long_outputs
from muxcluster.offline.choice import summary_of
from muxcluster.placement.cost.resources import resource_model
from muxcluster.placement.hardware import gpu_named
from muxcluster.placement.shapes.known import shape_named

MODEL = resource_model(shape_named("llama-3.1-8b"), gpu_named("A100-80GB"))
PUBLISHED = {
    "burstgpt": (0.02, 17.8),
    "mmlu": (0.86, 54.9),
    "video": (0.0, 0.05),
    "wildchat": (0.19, 2.1),
    "sharegpt": (0.02, 3.1),
    "azure": (0.01, 33.2),
}


def test_kinds_are_like_their_sources() -> None:
    kinds = kinds_of(TRACES[0], MODEL)
    assert sorted(kinds) == sorted(PUBLISHED)
    for name, (sharing, density) in PUBLISHED.items():
        found = kind_summary(kinds[name], MODEL)
        assert abs(found.sharing - sharing) < 0.02
        assert abs(found.density / density - 1) < 0.17


@pytest.mark.parametrize("mix", TRACES)
def test_mixtures_are_as_dense_and_share_as_much_as_asked(mix: Mix) -> None:
    found = summary_of(trace(mix, 15_000, MODEL, 1e9, seed=1).with_tree())
    assert 15_000 <= found.num_requests < 16_000
    assert abs(found.sharing - mix.sharing) < 0.03
    assert abs(found.density / mix.density - 1) < 0.05


def test_the_grid_has_25_mixtures_that_exist() -> None:
    assert len(set(GRID)) == 25
    for mix in GRID:
        assert sum(kind.share for kind in kinds_of(mix, MODEL).values()) == pytest.approx(1.0)


def test_what_cannot_be_mixed_is_refused() -> None:
    with pytest.raises(ValueError, match="no mixture"):
        kinds_of(Mix(1.4, 0.9), MODEL)


def test_long_outputs_are_spread_and_the_same_in_sum() -> None:
    drawn = [long_outputs(1000, 4000, 500, np.random.default_rng(seed)) for seed in (0, 1)]
    assert np.array_equal(np.sort(drawn[0]), np.sort(drawn[1]))
    assert not np.array_equal(*drawn)
    assert drawn[0].max() == 4000
    assert abs(drawn[0].mean() / 1000 - 1) < 0.1
    assert abs(drawn[0].std() / 1000 - 1) < 0.25
