"""Models that take images in muxcluster.yaml: what they cannot do yet, and limits of requests."""

from collections.abc import Callable
from pathlib import Path

import pytest

from muxcluster.cluster.ingress.serve_app import settings_of
from muxcluster.config.load import load_config
from muxcluster.config.planning import plan_for
from muxcluster.config.units import served_models, unit_specs
from muxcluster.core.errors import ConfigError
from muxcluster.core.inputs.images.rules import ImageLimits

Write = Callable[[str], Path]
MakeModel = Callable[..., Path]

FILE = """
models:
  - {name: vl, path: vl, KEYS}
  - {name: plain, path: plain}
cluster: {nodes: [NODE]}
server: {max_images: 3, max_image_bytes: 1000, max_image_pixels: 500}
"""
CPU = "{name: local, gpu: cpu, cores: 2, memory_gb: 8}"
VISION = {
    "depth": 2,
    "hidden_size": 32,
    "intermediate_size": 48,
    "out_hidden_size": 64,
    "patch_size": 14,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
}


@pytest.fixture
def written(write: Write, model_directory: MakeModel) -> Callable[..., Path]:
    model_directory("vl", model_type="qwen2_5_vl", vision_config=VISION)
    model_directory("plain")

    def make(keys: str = "rate: 1", node: str = CPU) -> Path:
        return write(FILE.replace("KEYS", keys).replace("NODE", node))

    return make


def test_the_edge_knows_which_model_takes_images(written: Callable[..., Path]) -> None:
    config = load_config(written())
    assert {each.name: each.takes_images for each in served_models(config)} == {
        "vl": True,
        "plain": False,
    }
    (unit,) = unit_specs(config, plan_for(config))
    assert {model.name for model in unit.models} == {"vl", "plain"}
    assert settings_of(config).images == ImageLimits(3, 1000, 500)


@pytest.mark.parametrize(
    ("keys", "key"),
    [
        ("quantize: int8", "quantize"),
        ("backend: dense", "backend"),
        ("task: embed, output_tokens: 1", "task"),
        ("adapters: [{name: one, path: one}]", "adapters"),
        ("adapter_places: {count: 1, rank: 8}", "adapter_places"),
    ],
)
def test_what_it_cannot_do_yet_is_refused(
    written: Callable[..., Path], keys: str, key: str
) -> None:
    with pytest.raises(ConfigError, match="not for a model that takes images") as refused:
        load_config(written(keys))
    assert key in refused.value.key
