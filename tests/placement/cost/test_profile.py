"""Profiles: what is read, what is refused and how the refusal reads."""

import copy
import json
from dataclasses import replace

import pytest

from muxcluster.placement.cost import (
    Cell,
    MixedCell,
    Profile,
    Turn,
    cost_for,
    read_muxserve,
    slowdown,
)
from muxcluster.placement.cost.interference import Slowed, fitted_loss
from muxcluster.placement.cost.measured import MeasuredCost
from muxcluster.placement.cost.roofline import Roofline
from muxcluster.placement.hardware import GPUS
from muxcluster.placement.shapes.known import SHAPES
from muxcluster.placement.shapes.shape import ModelShape

VALID = {
    "version": 1,
    "gpu": "NVIDIA A100-SXM4-80GB",
    "itemsize": 2,
    "machine": "a test",
    "models": [
        {
            "name": "tiny",
            "shape": {
                "num_layers": 2,
                "hidden_size": 64,
                "num_heads": 4,
                "num_kv_heads": 2,
                "head_dim": 16,
                "intermediate_size": 128,
                "vocab_size": 100,
                "max_position": 256,
            },
            "cells": [
                {
                    "phase": "decode",
                    "tp": 1,
                    "share": 0.5,
                    "batch": 4,
                    "tokens": 32,
                    "seconds": [0.02, 0.03, 0.9],
                }
            ],
        }
    ],
}


def read(tmp_path, content) -> Profile:
    path = tmp_path / "profile.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return Profile.read(path)


def changed(*keys, value):
    content = copy.deepcopy(VALID)
    place = content
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value
    return content


def test_what_is_written_is_read_back(tmp_path) -> None:
    profile = read(tmp_path, VALID)
    assert profile.models[0].cells[0].seconds == (0.02, 0.03, 0.9)
    assert read(tmp_path, profile.to_json()) == profile
    assert hash(read(tmp_path, profile.to_json())) == hash(profile)


CELL = ("models", 0, "cells", 0)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "not a profile: Invalid JSON"),
        ("[]", "not a profile"),
        (changed("version", value=2), "version: "),
        (changed("speed", value=1), "speed: "),
        (changed("itemsize", value="2"), "itemsize: "),
        (changed("models", 0, "shape", "num_layers", value=0), "models[0].shape: "),
        (changed("models", 0, "shape", "head_dim", value="x"), "models[0].shape.head_dim: "),
        (changed(*CELL, "seconds", value=[]), "models[0].cells[0].seconds: "),
        (changed(*CELL, "seconds", value=[1.0, 0.0]), "models[0].cells[0].seconds[1]: "),
        (changed(*CELL, "seconds", value=[-1.0]), "greater than 0"),
        (changed(*CELL, "share", value=50), "models[0].cells[0].share: "),
        (changed(*CELL, "batch", value=1.5), "models[0].cells[0].batch: "),
        (changed(*CELL, "phase", value="mixed"), "'prefill' or 'decode'"),
        (changed("models", value={}), "models: expected a list, found dict"),
        (changed("gpu", value=None), "gpu: expected str, found null"),
        (changed("itemsize", value=True), "itemsize: expected int, found bool"),
        (changed("version", value=True), "version: must be 1"),
        ({**VALID, "pairs": [{}]}, "pairs[0].tp: missing"),
    ],
)
def test_a_fault_is_one_line_with_file_key_and_remedy(tmp_path, content, said) -> None:
    with pytest.raises(ValueError, match=r"profile\.json: ") as caught:
        read(tmp_path, content)
    message = str(caught.value)
    assert said in message
    assert "\n" not in message
    assert "muxcluster profile" in message


def test_a_missing_file_is_an_oserror(tmp_path) -> None:
    with pytest.raises(FileNotFoundError):
        Profile.read(tmp_path / "absent.json")


def test_a_profile_counts_for_its_gpu_and_dtype_only(tmp_path) -> None:
    profile = read(tmp_path, VALID)
    assert isinstance(cost_for(GPUS["A100-80GB"], 2, [profile]), MeasuredCost)
    assert cost_for(GPUS["A100-80GB"], 4, [profile]) == Roofline(GPUS["A100-80GB"], 4)
    assert cost_for(GPUS["H100"], 2, [profile]) == Roofline(GPUS["H100"], 2)
    empty = replace(profile, models=())
    assert cost_for(GPUS["A100-80GB"], 2, [empty]) == Roofline(GPUS["A100-80GB"], 2)


def test_a_cell_alone_is_predicted_by_the_median_of_its_repeats(tmp_path) -> None:
    profile = read(tmp_path, VALID)
    cost = cost_for(GPUS["A100-80GB"], 2, [profile])
    shape = profile.models[0].shape
    assert cost.decode_s(shape, 1, 0.5, 4, 32) == pytest.approx(0.03, rel=0.1)
    assert cost.prefill_s(shape, 1, 0.5, 4, 32) > 0


def paired(loss: float):
    """VALID with a pair that lost `loss` where together they draw all of the bandwidth or more."""
    shape = ModelShape(**VALID["models"][0]["shape"])
    cost = cost_for(GPUS["A100-80GB"], 2, [Profile.from_json(VALID)])
    jobs, draws = {}, []
    for phase, work in (("prefill", cost.prefill_draw), ("decode", cost.decode_draw)):
        where = {"share": 0.5, "batch": 4, "tokens": 64}
        seconds = getattr(cost, f"{phase}_s")(shape, 1, *where.values())
        draws.append(work(shape, 1, *where.values()))
        jobs[phase] = {"model": "tiny", **where, "alone": [seconds]}
    factor = slowdown(draws, loss)
    for job in jobs.values():
        job["beside"] = [factor * job["alone"][0]]
    return changed("pairs", value=[{"tp": 1, **jobs}]), draws, factor


def test_pairs_decide_what_neighbours_cost(tmp_path) -> None:
    for loss in (0.0, 0.3, 2.0):
        content, draws, factor = paired(loss)
        profile = read(tmp_path, content)
        assert read(tmp_path, profile.to_json(indent=2)) == profile
        cost = cost_for(GPUS["A100-80GB"], 2, [profile])
        assert cost.slowdown(draws) == pytest.approx(factor)
        assert cost.slowdown([0.7]) == 1.0
        assert cost.slowdown([0.5, 0.5]) == pytest.approx(1 + loss)


def test_without_pairs_neighbours_cost_what_is_usual(tmp_path) -> None:
    cost = cost_for(GPUS["A100-80GB"], 2, [read(tmp_path, VALID)])
    assert cost.slowdown([0.5, 0.4]) == slowdown([0.5, 0.4]) > 1.0


def test_one_odd_pair_does_not_count() -> None:
    usual = [Slowed((0.4, 0.4), slowdown((0.4, 0.4), 0.2))] * 4
    assert fitted_loss([*usual, Slowed((0.4, 0.4), 9.0)]) == pytest.approx(0.2)
    assert fitted_loss([Slowed((0.4, 0.4), 0.9)]) == 0.0
    assert fitted_loss([Slowed((0.0, 0.0), 3.0)]) == fitted_loss([]) == 0.1


def test_a_pair_of_a_model_that_is_not_there_is_refused(tmp_path) -> None:
    content, *_ = paired(0.1)
    content["pairs"][0]["decode"]["model"] = "other"
    with pytest.raises(ValueError, match=r"pairs\[0\]\.decode\.model: no model 'other'"):
        read(tmp_path, content)


def test_muxserve_leaves_out_what_was_not_measured(tmp_path) -> None:
    path = tmp_path / "llama.json"
    entry = {"prefill": 16.0, "decoding": -1}
    path.write_text(json.dumps({"llama-7b": {"2": {"50": {"8": {"128": entry}}}}}))
    profile = read_muxserve(path)
    assert (profile.gpu, profile.itemsize) == ("A100-80GB", 2)
    (model,) = profile.models
    assert model.shape == SHAPES["llama-7b"]
    assert model.cells == (
        Cell(phase="prefill", tp=2, share=0.5, batch=8, tokens=128, seconds=(0.016,)),
    )


@pytest.mark.parametrize(
    "content", ["", "[]", '{"llama-8b": {}}', '{"llama-7b": {"1": {"50": {"1": {"32": {}}}}}}']
)
def test_muxserve_refuses_other_files_in_one_line(tmp_path, content) -> None:
    path = tmp_path / "llama.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"llama\.json: not MuxServe's profile") as caught:
        read_muxserve(path)
    assert "\n" not in str(caught.value)


def test_the_published_profile_is_read_whole(data_dir) -> None:
    profile = read_muxserve(data_dir / "muxserve" / "llama_a100_profile.json")
    assert sum(len(model.cells) for model in profile.models) == 10240 - 1246
    seven = next(model for model in profile.models if model.name == "llama-7b")
    wanted = {"tp": 1, "share": 0.5, "batch": 1, "tokens": 128}
    found = {
        cell.phase: cell.seconds
        for cell in seven.cells
        if all(getattr(cell, key) == value for key, value in wanted.items())
    }
    assert found["prefill"] == pytest.approx([0.0213], abs=1e-4)
    assert found["decode"] == pytest.approx([0.0126], abs=1e-4)


MIXED = {
    "tp": 1,
    "share": 1.0,
    "rows": 8,
    "context": 64,
    "prompts": 2,
    "tokens": 32,
    "seconds": [0.04],
}
TURN = {"rows": 8, "new": 0, "seconds": [0.001, 0.002]}


def test_mixed_cells_and_turns_are_read_and_written(tmp_path) -> None:
    content = copy.deepcopy(VALID)
    content["models"][0] |= {"mixed": [MIXED], "turns": [TURN]}
    profile = read(tmp_path, content)
    (model,) = profile.models
    assert model.mixed == (MixedCell(1, 1.0, 8, 64, 2, 32, (0.04,)),)
    assert model.turns == (Turn(8, 0, (0.001, 0.002)),)
    assert read(tmp_path, profile.to_json()) == profile
    assert read(tmp_path, VALID).models[0].mixed == ()


@pytest.mark.parametrize(("key", "wrong"), [("rows", 0), ("share", 1.5), ("seconds", [])])
def test_a_wrong_mixed_cell_is_refused_by_its_key(tmp_path, key, wrong) -> None:
    content = copy.deepcopy(VALID)
    content["models"][0]["mixed"] = [MIXED | {key: wrong}]
    with pytest.raises(ValueError, match=rf"models\[0\]\.mixed\[0\]\.{key}"):
        read(tmp_path, content)
