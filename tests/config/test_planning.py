"""What the planner is asked, from the file: demands, objective, profiles."""

import json

import pytest

from muxcluster.config.load import load_config
from muxcluster.config.planner_input import nodes_of, problem
from muxcluster.config.planning import plan_for
from muxcluster.config.profiles import is_published, read_profile
from muxcluster.core.errors import ConfigError, InfeasiblePlan
from muxcluster.placement.shapes.known import SHAPES

FILE = """
models:
  - {name: a, shape: llama-2-7b, rate: 2, weight: 3, slo: {ttft: 0.4, tpot: 0.2}}
  - {name: b, shape: opt-1.3b}
cluster:
  profiles: [one.json]
  nodes: [{name: n, gpus: 1, gpu: A100-80GB}]
policy: {objective: weighted}
"""
PROFILE = {
    "gpu": "A100-80GB",
    "itemsize": 2,
    "machine": "a test",
    "models": [
        {
            "name": "a",
            "shape": {
                name: getattr(SHAPES["llama-2-7b"], name) for name in SHAPES["llama-2-7b"].__slots__
            },
            "cells": [
                {"phase": phase, "tp": 1, "share": 1.0, "batch": 1, "tokens": 128, "seconds": [0.1]}
                for phase in ("prefill", "decode")
            ],
        }
    ],
}


@pytest.fixture
def profile(tmp_path):
    """(content) -> one.json beside the file."""

    def make(content: object):
        path = tmp_path / "one.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    return make


def asked(file):
    config = load_config(file)
    return problem(config, nodes_of(config))


def test_weights_targets_objective_and_profiles(write, profile) -> None:
    profile(PROFILE)
    found = asked(write(FILE))
    first, second = found.demands
    assert (first.weight, first.ttft_s, first.tpot_s) == (3.0, 0.4, 0.2)
    assert (second.weight, second.ttft_s, second.tpot_s) == (1.0, None, None)
    assert found.objective == "weighted"
    assert [each.machine for each in found.profiles] == ["a test"]


def test_defaults(write) -> None:
    found = asked(write("models: [{name: a, shape: opt-1.3b}]"))
    assert (found.objective, found.profiles) == ("throughput", ())


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("3", "expected a JSON object"),
        ({}, "gpu: "),
        ({**PROFILE, "itemsize": 0}, "itemsize: "),
        ({**PROFILE, "gpus": 1}, "gpus: "),
        ({"llama-7b": {"1": 3}}, "decoding"),
    ],
)
def test_a_broken_profile_is_one_line_with_its_key(write, profile, content, says) -> None:
    path = profile(content)
    file = write(FILE)
    with pytest.raises(ConfigError) as caught:
        asked(file)
    message = str(caught.value)
    assert message.startswith(f"{file}: cluster.profiles[0]: {path}: ")
    assert message.count(str(path)) == 1
    assert "\n" not in message
    assert says in message


def test_a_profile_that_is_missing_or_a_folder(write, tmp_path) -> None:
    with pytest.raises(ConfigError, match=r"profiles\[0\]: .*one\.json: cannot be read"):
        asked(write(FILE))
    with pytest.raises(ConfigError, match="cannot be read"):
        asked(write(FILE.replace("one.json", str(tmp_path))))


def test_the_published_table_is_recognised(data_dir) -> None:
    path = data_dir / "muxserve" / "llama_a100_profile.json"
    assert is_published(path)
    found = read_profile(path)
    assert (found.gpu, found.itemsize) == ("A100-80GB", 2)
    assert len(found.models) > 1


def test_our_own_is_not_taken_for_it(profile) -> None:
    path = profile(PROFILE)
    assert not is_published(path)
    assert read_profile(path).models[0].name == "a"


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ("weight: 3", "weight: 0", "models[0].weight"),
        ("weight: 3", "wieght: 3", "models[0].wieght"),
        ("profiles: [one.json]", "profiles: one.json", "cluster.profiles"),
        ("profiles: [one.json]", "profiles: ['']", "cluster.profiles[0]"),
        ("profiles: [one.json]", "profile: [one.json]", "cluster.profile"),
        ("objective: weighted", "objective: weight", "policy.objective"),
    ],
)
def test_refusals_name_the_key(write, old, new, key) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(write(FILE.replace(old, new)))
    assert caught.value.key == key


def test_infeasible_names_file_key_model_and_memory(write) -> None:
    file = write("models: [{name: a, shape: llama-2-70b}]\ncluster: {nodes: [{name: n, gpu: L4}]}")
    with pytest.raises(InfeasiblePlan) as caught:
        plan_for(load_config(file))
    assert str(caught.value).startswith(f"{file}: models[0]: a does not fit: ")
    assert "GiB missing" in str(caught.value)
