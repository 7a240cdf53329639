"""`models[].speculation`: what units get of it, and what is refused."""

from collections.abc import Callable
from pathlib import Path

import pytest

from muxcluster.config.load import load_config
from muxcluster.config.planning import plan_for
from muxcluster.config.units import unit_specs
from muxcluster.core.errors import ConfigError
from muxcluster.core.unitspec import SpeculationSpec

Write = Callable[[str], Path]
MakeModel = Callable[..., Path]

FILE = """
models:
  - name: a
    path: tiny
    speculation: {method: ngram}
  - name: b
    path: tiny
    speculation:
      method: ngram
      num_speculative_tokens: 7
      prompt_lookup_max: 5
      prompt_lookup_min: 3
      when: always
      acceptance: 0.5
  - {name: c, path: tiny}
cluster: {nodes: [{name: local, gpu: cpu, cores: 2, memory_gb: 8}]}
"""


@pytest.fixture
def file(write: Write, model_directory: MakeModel) -> Path:
    model_directory("tiny")
    return write(FILE)


def test_units_get_what_is_asked_for(file: Path) -> None:
    config = load_config(file)
    (unit,) = unit_specs(config, plan_for(config))
    found = {model.name: model.speculation for model in unit.models}
    assert found == {
        "a": SpeculationSpec(),
        "b": SpeculationSpec(7, 5, 3, is_forced=True, acceptance=0.5),
        "c": None,
    }


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("{method: ngram}", "{method: eagle}", r"models\[0\].speculation.method"),
        ("{method: ngram}", "{}", r"models\[0\].speculation.method"),
        ("_min: 3", "_min: 6", "prompt_lookup_min is more than prompt_lookup_max"),
        ("tokens: 7", "tokens: 0", r"models\[1\].speculation.num_speculative_tokens"),
        ("acceptance: 0.5", "acceptance: 1", r"models\[1\].speculation.acceptance"),
        ("when: always", "wen: always", r"models\[1\].speculation.wen: unknown key.*when"),
        ("path: tiny\n    spec", "path: tiny\n    backend: dense\n    spec", "the dense backend"),
        ("path: tiny\n    spec", "path: tiny\n    task: embed\n    spec", "no output tokens"),
    ],
)
def test_what_cannot_be_is_refused(file: Path, old: str, new: str, message: str) -> None:
    file.write_text(FILE.replace(old, new, 1))
    with pytest.raises(ConfigError, match=message):
        load_config(file)


def test_a_model_with_states_is_refused(write: Write, model_directory: MakeModel) -> None:
    layers = ["mamba", "full_attention"]
    model_directory("tiny", model_type="new", state_size=8, conv_kernel=4, layer_types=layers)
    with pytest.raises(ConfigError, match="cannot take a token back"):
        load_config(write(FILE))
