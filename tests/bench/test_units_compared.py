"""The units that are simulated are those that worker processes receive."""

from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from bench.planning.units import clusters, compare, differences
from muxcluster.config.load import Config, load_config
from muxcluster.config.planning import plan_for
from muxcluster.config.units import unit_specs
from muxcluster.core.job import WorkerSpec
from muxcluster.core.unitspec import UnitSpec


@pytest.mark.slow
def test_random_clusters_and_a_published_point_do_not_differ(data_dir: Path) -> None:
    asked = [*islice(clusters(data_dir, 0, 0), 1), *list(clusters(data_dir, 10, 3))[-10:]]
    found = compare(iter(asked))
    assert found.differences == ()
    assert found.num_clusters >= 8
    assert len(found.lanes) >= 3


@pytest.fixture
def unit(tmp_path: Path) -> UnitSpec:
    file = tmp_path / "muxcluster.yaml"
    nodes = "cluster: {nodes: [{name: n, gpus: 1, gpu: H100}]}"
    models = ", ".join(f"{{name: {name}, shape: llama-3.1-8b}}" for name in "ab")
    file.write_text(f"models: [{models}]\n{nodes}\n")
    config: Config = load_config(file)
    given = tuple(replace(model, path=tmp_path) for model in config.models)
    (spec,) = unit_specs(replace(config, models=given), plan_for(config))
    return spec


def test_what_differs_is_named(unit: UnitSpec) -> None:
    assert differences(unit, unit) == []
    mixed = replace(unit, scheduler=replace(unit.scheduler, lane="mixed"))
    assert [text.split()[1] for text in differences(unit, mixed)] == ["scheduler"]
    tenths = tuple(WorkerSpec(w.worker_id, (0.1, *w.shares), w.phases) for w in unit.workers)
    assert [t.split()[1] for t in differences(replace(unit, workers=tenths), unit)] == [
        "rungs",
        "workers",
    ]
    fewer = replace(unit, num_blocks=unit.num_blocks - 1)
    assert differences(unit, fewer)[0].startswith("n-0: num_blocks")
    rows = replace(unit.models[1], max_seqs=1)
    changed = replace(unit, models=(unit.models[0], rows))
    assert differences(unit, changed) == ["n-0 b: max_seqs 64 and 1"]
