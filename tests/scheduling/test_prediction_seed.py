"""Lines fitted to the cost model, against the cost model on another grid than the fit's."""

import json
import random
from statistics import median

import numpy as np
import pytest

from muxcluster.core.job import Phase
from muxcluster.placement.cost import Profile, Roofline, cost_for
from muxcluster.placement.hardware import gpu_named
from muxcluster.placement.shapes.known import SHAPES
from muxcluster.scheduling.steptime.model import StepTimes
from muxcluster.scheduling.steptime.seed import CostSeed, SeedModel

MODELS = {"llama-2-7b": 1, "llama-2-13b": 1, "llama-2-70b": 4}
SHARES = (0.3, 0.5, 1.0)


def seed_of(name: str) -> tuple[CostSeed, SeedModel]:
    model = SeedModel(SHAPES[name], cost_for(gpu_named("A100-80GB"), 2))
    return CostSeed({name: model}, MODELS[name], max_tokens=4096, max_len=4096), model


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("share", SHARES)
def test_lines_are_near_the_cost_model(name, share) -> None:
    seed, model = seed_of(name)
    times, rng = StepTimes(seed), random.Random(0)
    decode_off, prefill_off = [], []
    for _ in range(300):
        rows, length = rng.randint(1, 256), rng.randint(16, 4096)
        truth = model.cost.decode_s(model.shape, MODELS[name], share, rows, length)
        predicted = times.of(name, share).decode_s(rows, rows * length)
        decode_off.append(abs(predicted / truth - 1))
        length = int(np.exp(rng.uniform(np.log(16), np.log(4096))))
        prompts = rng.randint(1, min(8, max(1, 4096 // length)))
        truth = model.cost.prefill_s(model.shape, MODELS[name], share, prompts, length)
        tokens = prompts * length
        predicted = times.of(name, share).prefill_s(tokens, tokens * length / 2)
        prefill_off.append(abs(predicted / truth - 1))
    assert median(decode_off) < 0.05
    assert max(decode_off) < 0.16
    assert median(prefill_off) < 0.02
    assert max(prefill_off) < 0.18


def test_a_profile_seeds_as_well(tmp_path) -> None:
    """A profile of a GPU twice as slow as the roofline's gives lines twice as high."""
    shape, gpu = SHAPES["llama-2-7b"], gpu_named("A100-80GB")
    roofline = Roofline(gpu, 2)
    cells = [
        {"phase": "prefill", "tp": 1, "share": 0.5, "batch": 1, "tokens": length}
        | {"seconds": [2 * roofline.prefill_s(shape, 1, 0.5, 1, length)]}
        for length in (64, 256, 1024, 2048)
    ] + [
        {"phase": "decode", "tp": 1, "share": 0.5, "batch": rows, "tokens": 512}
        | {"seconds": [2 * roofline.decode_s(shape, 1, 0.5, rows, 512)]}
        for rows in (1, 8, 64, 256)
    ]
    sizes = {name: getattr(shape, name) for name in shape.__slots__}
    path = tmp_path / "profile.json"
    model = {"name": "m", "shape": sizes, "cells": cells}
    content = {"gpu": "A100-80GB", "itemsize": 2, "machine": "test", "models": [model]}
    path.write_text(json.dumps(content))
    cost = cost_for(gpu, 2, [Profile.read(path)])
    times = StepTimes(CostSeed({"m": SeedModel(shape, cost)}))
    expected = 2 * roofline.decode_s(shape, 1, 0.5, 64, 512)
    assert times.of("m", 0.5).decode_s(64, 64 * 512) == pytest.approx(expected, rel=0.1)
    expected = 2 * roofline.prefill_s(shape, 1, 0.5, 1, 1024)
    assert times.of("m", 0.5).prefill_s(1024, 1024**2 / 2) == pytest.approx(expected, rel=0.1)


def test_unknown_models_and_small_limits() -> None:
    seed, model = seed_of("llama-2-7b")
    assert seed.line(Phase.DECODE, "other", 0.5) is None
    tiny = CostSeed({"m": model}, max_rows=1, max_tokens=8, max_len=4)
    for phase in (Phase.DECODE, Phase.PREFILL):
        line = tiny.line(phase, "m", 1.0)
        assert line is not None
        assert min(line) >= 0
        assert line.seconds(1, 4) > 0
        assert all(type(each) is float for each in line)
