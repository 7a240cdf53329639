"""Experts in MXFP4 stay so, and give Hugging Face's tokens for the weights that they stand for."""

import asyncio
import json
import os
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from muxcluster.config.facts import read_facts
from muxcluster.core.errors import LoadError
from muxcluster.engine.load.paged_loading import load_model
from muxcluster.engine.parallel.executor import RanksExecutor
from muxcluster.engine.processes.executor import ProcessExecutor
from muxcluster.engine.quantised.mxfp4_experts import Mxfp4Experts
from muxcluster.kernels.products.mxfp4_product import widened
from muxcluster.placement.shapes.division import refusal
from muxcluster.placement.shapes.known import shape_named
from tests.engine.conftest import ModelBuilder
from tests.engine.dense.test_http import serving
from tests.engine.driver import drivers, ragged, unit_of
from tests.engine.fakes import Sink
from tests.engine.live_units import workers_of
from tests.engine.parallel.ranks import on_ranks, over_ranks, rank_model
from tests.engine.quantised.checkpoints import Checkpoint
from tests.engine.quantised.mxfp4 import write_mxfp4
from tests.engine.units import (
    check_lengths,
    check_nothing_leaks,
    greedy,
    prompts,
    running,
    spec_of,
    submit,
)
from tests.models import model_spec
from tests.oracles import GreedyOracle

pytestmark = pytest.mark.usefixtures("fast_children")

NUM_TOKENS = 20


@pytest.fixture(scope="module")
def checkpoint(tiny: ModelBuilder, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    folder = tmp_path_factory.mktemp("mxfp4")
    both = write_mxfp4(tiny("gpt_oss"), folder)
    return Checkpoint(both.quantised.rename(folder / "gpt_oss"), both.dense)


def experts_of(model: torch.nn.Module) -> dict[str, Mxfp4Experts]:
    return {name: each for name, each in model.named_modules() if isinstance(each, Mxfp4Experts)}


def test_weights_are_those_that_the_format_means(checkpoint: Checkpoint) -> None:
    model = load_model(model_spec(checkpoint.quantised, "m"), "cpu")
    expected, seen = load_file(checkpoint.dense / "model.safetensors"), experts_of(model)
    assert len(seen) == 2
    for name, experts in seen.items():
        for leaf in ("gate_up_proj", "down_proj"):
            blocks, scales = (getattr(experts, f"{leaf}_{kind}") for kind in ("blocks", "scales"))
            exact = expected[f"{name}.{leaf}"]
            assert torch.equal(widened(blocks, scales), exact.transpose(1, 2)), name


def test_they_take_the_bytes_that_the_plan_counts(checkpoint: Checkpoint) -> None:
    """But for norms, biases and sinks, which no plan counts."""
    model = load_model(model_spec(checkpoint.quantised, "m"), "cpu")
    small = ("bias", "sinks", "layernorm.weight", "norm.weight")
    held = sum(each.nbytes for name, each in model.named_parameters() if not name.endswith(small))
    kept = sum(each.nbytes for experts in experts_of(model).values() for each in experts.buffers())
    assert held + kept == read_facts(checkpoint.quantised).shape.weight_bytes(4)


def test_tokens(checkpoint: Checkpoint) -> None:
    unit = unit_of(checkpoint.quantised)
    (driver,) = drivers(unit)
    sequences = driver.run(ragged(unit.models[0].vocab_size, 6), NUM_TOKENS)
    oracle = GreedyOracle(checkpoint.dense)
    for each in sequences:
        oracle.check(each.tokens[: each.num_prompt], each.output)
    assert oracle.num_near_ties <= 1


def test_random_experts_without_files(checkpoint: Checkpoint) -> None:
    spec = model_spec(checkpoint.quantised, "m", load_format="dummy")
    first, again = (experts_of(load_model(spec, "cpu")) for _ in range(2))
    assert len(first) == 2
    for name, experts in first.items():
        weight = widened(experts.down_proj_blocks, experts.down_proj_scales)
        assert 0.01 < float(weight.std()) < 0.05
        assert torch.equal(experts.down_proj_blocks, again[name].down_proj_blocks)


def check(checkpoint: Checkpoint, asked: dict[str, list[int]], sink: Sink) -> None:
    check_lengths(sink, asked, NUM_TOKENS)
    oracle = GreedyOracle(checkpoint.dense)
    for request_id, prompt in asked.items():
        oracle.check(prompt, sink.tokens[request_id])
    assert oracle.num_near_ties <= 1


def test_tokens_stay_though_a_worker_and_the_owner_are_killed(checkpoint: Checkpoint) -> None:
    spec = spec_of([checkpoint.quantised])
    asked = prompts("gpt_oss", 6, 512)
    executor = ProcessExecutor(spec)
    with running(spec, executor) as (unit, sink):
        submit(unit, asked, greedy(NUM_TOKENS))
        sink.wait_for_tokens(next(iter(asked)), 4)
        os.kill(workers_of(executor.owner_pid, len(spec.workers))[-1], signal.SIGKILL)
        sink.wait_for_tokens(next(iter(asked)), 8)
        os.kill(executor.owner_pid, signal.SIGKILL)
        sink.wait_for_ends(len(asked))
        check_nothing_leaks(unit)
    check(checkpoint, asked, sink)


@pytest.mark.slow
def test_divided_over_ranks(checkpoint: Checkpoint) -> None:
    spec = over_ranks(spec_of([checkpoint.quantised], lane="temporal", partition="none"), 2)
    asked = prompts("gpt_oss", 5, 512)
    with running(spec, RanksExecutor(spec)) as (unit, sink):
        submit(unit, asked, greedy(NUM_TOKENS))
        sink.wait_for_ends(len(asked))
        check_nothing_leaks(unit)
    check(checkpoint, asked, sink)


def test_over_http(checkpoint: Checkpoint, tmp_path: Path) -> None:
    """Planned, started and asked as a user does, with the checkpoint as it is."""
    file = tmp_path / "muxcluster.yaml"
    model = f"  - {{name: gpt, path: {checkpoint.quantised}, max_model_len: 256}}"
    file.write_text("\n".join(["models:", model, "policy: {kv_gb: 0.02, num_threads: 1}"]), "utf-8")
    (prompt,) = prompts("gpt_oss", 1, 512).values()
    body = {"model": "gpt", "prompt": prompt, "max_tokens": NUM_TOKENS, "temperature": 0}

    async def run() -> list[int]:
        async with serving(file) as (unit, http):
            asked = {**body, "ignore_eos": True, "return_token_ids": True}
            response = await http.post("/v1/completions", json=asked)
            assert response.status_code == 200, response.text
            assert unit.unit.stats().models[0].backend == "paged"
            tokens: list[int] = response.json()["choices"][0]["token_ids"]
            return tokens

    found = asyncio.run(run())
    assert len(found) == NUM_TOKENS
    GreedyOracle(checkpoint.dense).check(prompt, found)


def changed(source: Path, target: Path, **config: object) -> Path:
    """A copy of the checkpoint with other entries in config.json."""
    target.mkdir()
    (target / "model.safetensors").symlink_to(source / "model.safetensors")
    found = json.loads((source / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**found, **config}))
    return target


def test_a_part_that_ends_amid_a_block_is_refused(checkpoint: Checkpoint, tmp_path: Path) -> None:
    """By the planner, which asks first, and where it is loaded."""
    sizes = {"intermediate_size": 96, "num_key_value_heads": 4}
    directory = changed(checkpoint.quantised, tmp_path / "m", **sizes)
    spec = model_spec(directory, "m", load_format="dummy")
    assert refusal(read_facts(directory).shape, 4) == (
        "96 inputs in groups of 32 cannot be split over 4 GPUs"
    )
    with pytest.raises(LoadError, match="not whole blocks of 32"):
        on_ranks(4, lambda group: load_model(rank_model(spec, 4), "cpu", group))


def test_broken_files_are_named(checkpoint: Checkpoint, tmp_path: Path) -> None:
    tensors = load_file(checkpoint.quantised / "model.safetensors")
    name = "model.layers.1.mlp.experts.down_proj_scales"
    config = (checkpoint.quantised / "config.json").read_text()
    for change, message in (
        ({}, f"{name} is missing"),
        ({name: tensors[name][:, :3].contiguous()}, f"{name} is torch.uint8"),
        ({name: tensors[name].int()}, f"{name} is torch.int32"),
    ):
        kept = {key: each for key, each in tensors.items() if key != name}
        save_file({**kept, **change}, tmp_path / "model.safetensors", {"format": "pt"})
        (tmp_path / "config.json").write_text(config)
        with pytest.raises(LoadError, match=message):
            load_model(model_spec(tmp_path, "m"), "cpu")


def test_experts_of_other_models_are_refused(tiny: ModelBuilder, tmp_path: Path) -> None:
    directory = changed(
        tiny("mixtral"), tmp_path / "m", quantization_config={"quant_method": "mxfp4"}
    )
    with pytest.raises(LoadError, match="served of gpt_oss alone, not of mixtral"):
        read_facts(directory)


def test_the_known_shape_takes_what_the_published_files_do() -> None:
    """13.76 GB of safetensors."""
    assert shape_named("openai/gpt-oss-20b").weight_bytes(2) == pytest.approx(13.76e9, rel=5e-3)
