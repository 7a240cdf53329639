"""Adapters in muxcluster.yaml: names, places, bytes in plans, and what the edge serves."""

from collections.abc import Callable
from pathlib import Path

import pytest

from muxcluster.config.load import load_config
from muxcluster.config.planner_input import nodes_of, problem
from muxcluster.config.planning import plan_for
from muxcluster.config.units import served_models, unit_specs
from muxcluster.core.errors import ConfigError, LoadError
from muxcluster.placement.memory import weight_bytes
from tests.core.test_adapter_files import write as write_adapter

Write = Callable[[str], Path]
MakeModel = Callable[..., Path]

FILE = """
models:
  - name: base
    path: tiny
    adapters: [{name: one, path: adapters/one}, {name: two, path: adapters/two}]
  - {name: other, path: tiny}
cluster: {nodes: [{name: local, gpu: cpu, cores: 2, memory_gb: 8}]}
"""


@pytest.fixture
def file(write: Write, model_directory: MakeModel, tmp_path: Path) -> Path:
    model_directory("tiny")
    (tmp_path / "adapters").mkdir()
    for name in ("one", "two"):
        write_adapter(tmp_path / "adapters" / name)
    return write(FILE)


def test_each_is_served_as_a_model_with_its_base(file: Path) -> None:
    config = load_config(file)
    served = served_models(config)
    assert [(each.name, each.base) for each in served] == [
        ("base", ""),
        ("one", "base"),
        ("two", "base"),
        ("other", ""),
    ]
    assert {each.unit_model for each in served} == {"base", "other"}
    assert served[1].path == served[0].path
    (unit,) = unit_specs(config, plan_for(config))
    specs = {model.name: model for model in unit.models}
    folder = file.parent / "adapters"
    size = 4 * 3 * (8 + 5)  # of fp32
    assert [(each.name, each.path, each.num_bytes) for each in specs["base"].adapters] == [
        ("one", str(folder / "one"), size),
        ("two", str(folder / "two"), size),
    ]
    assert specs["other"].adapters == ()


def test_plans_count_their_bytes(file: Path) -> None:
    config = load_config(file)
    base, other = problem(config, nodes_of(config)).demands
    for tp in (1, 2):  # as if each GPU had all of them
        more = weight_bytes(base, tp) - weight_bytes(other, tp)
        assert more == tp * 4 * 2 * 3 * (8 + 5)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("{name: two,", "{name: one,", r"models\[0\].adapters\[1\].name: 'one' is already"),
        ("{name: two,", "{name: other,", r"models\[0\].adapters\[1\].name: 'other' is already"),
        ("adapters/two", "adapters/tow", r"adapters\[1\].path: no such directory.*two"),
        ("adapters/two", "org/two", r"ids of the hub are not fetched"),
        ("adapters/two", "tiny", r"tiny is no adapter: it has no adapter_config.json"),
        ("path: tiny\n", "path: tiny\n    backend: dense\n", "dense backend has no adapters"),
        ("path: tiny\n", "path: tiny\n    task: embed\n", "embeddings or scores has no adapters"),
        ("path: adapters/two", "pth: adapters/two", r"adapters\[1\].pth: unknown key.*path"),
    ],
)
def test_what_is_refused(file: Path, old: str, new: str, message: str) -> None:
    file.write_text(FILE.replace(old, new, 1))
    with pytest.raises(ConfigError, match=message):
        load_config(file)


def test_a_file_at_fault_is_named(file: Path) -> None:
    broken = file.parent / "adapters" / "two"
    write_adapter(broken, use_dora=True)
    with pytest.raises(LoadError, match="use_dora") as error:
        load_config(file)
    assert error.value.path == broken / "adapter_config.json"


def test_keys_may_be_limited_to_an_adapter(file: Path) -> None:
    digest = "0" * 64
    keys = f"server: {{keys: [{{name: a, sha256: '{digest}', models: [MODEL]}}]}}\n"
    file.write_text(FILE + keys.replace("MODEL", "two"))
    load_config(file)
    file.write_text(FILE + keys.replace("MODEL", "tow"))
    with pytest.raises(ConfigError, match="no model is called 'tow'.*two"):
        load_config(file)


def with_places(file: Path, write: Write, places: str) -> Path:
    changed = FILE.replace("{name: other, path: tiny}", f"{{name: other, path: tiny, {places}}}")
    return write(changed)


def test_places_are_in_specifications_and_plans(file: Path, write: Write) -> None:
    without = problem(load_config(file), nodes_of(load_config(file))).demands
    places = "adapter_places: {count: 3, rank: 4}"
    config = load_config(with_places(file, write, places))
    (unit,) = unit_specs(config, plan_for(config))
    specs = {model.name: model for model in unit.models}
    assert (specs["other"].adapter_places, specs["other"].adapter_rank) == (3, 4)
    assert (specs["base"].adapter_places, specs["base"].adapter_rank) == (0, 0)
    demands = problem(config, nodes_of(config)).demands
    before = {each.name: each.adapter_bytes for each in without}
    after = {each.name: each.adapter_bytes for each in demands}
    shape = {each.name: each.shape for each in demands}["other"]
    heads = (shape.num_heads + shape.num_kv_heads) * shape.head_dim
    sums = 4 * shape.hidden_size + 2 * heads + 3 * (shape.hidden_size + shape.intermediate_size)
    assert after["base"] == before["base"]
    assert after["other"] - before["other"] == 4 * 3 * 4 * shape.num_layers * sums


def test_a_dense_model_has_no_places(file: Path, write: Write) -> None:
    places = "backend: dense, adapter_places: {count: 1}"
    with pytest.raises(ConfigError, match=r"models\[1\].adapter_places: a model on the dense"):
        load_config(with_places(file, write, places))


def test_folders_start_from_the_file(file: Path, write: Write) -> None:
    config = load_config(write(FILE + "server: {adapter_folders: [adapters, /srv/loras]}\n"))
    assert config.adapter_folders == (str(file.parent / "adapters"), "/srv/loras")
