"""Weights that are NaN: all of them, and those of one token."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from muxcluster.config.load import load_config
from muxcluster.config.planning import plan_for
from muxcluster.config.units import served_models, unit_specs
from muxcluster.core.errors import LoadError
from muxcluster.core.events import FinishReason
from muxcluster.demo.models import build_model
from muxcluster.engine.load.backends import load
from muxcluster.engine.unit.local import LocalUnitClient
from muxcluster.http.app import create_app
from muxcluster.router.backend import RoutedBackend
from tests.amounts import slow
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

pytestmark = pytest.mark.usefixtures("fast_children")

POISON = 300
"""A token that no other test data has: its embedding is NaN."""


def edit(path: Path, change: Callable[[str, torch.Tensor], None]) -> Path:
    """`change` is called with every weight's name and values, which it may overwrite."""
    file = path / "model.safetensors"
    weights = load_file(file)
    for name, tensor in weights.items():
        change(name, tensor)
    save_file(weights, file, metadata={"format": "pt"})
    return path


def poison(name: str, tensor: torch.Tensor) -> None:
    if name.endswith(("embed_tokens.weight", "word_embeddings.weight")):
        tensor[POISON] = torch.nan


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("family", ["llama", "opt", "bloom", "mamba"])
def test_broken_weights_are_refused_by_the_folder(
    tmp_path: Path, family: str, value: float
) -> None:
    def breaks(name: str, tensor: torch.Tensor) -> None:
        tensor.fill_(value)

    path = edit(build_model(tmp_path / "broken", family), breaks)
    with pytest.raises(LoadError, match="logits are not finite") as error:
        load(model_spec(path, "broken"), "cpu")
    assert error.value.path == path


def test_values_alone_are_noticed(tmp_path: Path) -> None:
    """Keys decide where to look, values what is seen: the probe without attention saw neither."""

    def breaks(name: str, tensor: torch.Tensor) -> None:
        if name.endswith("v_proj.weight"):
            tensor[0, 0] = torch.nan

    path = edit(build_model(tmp_path / "broken", "llama"), breaks)
    with pytest.raises(LoadError, match="logits are not finite"):
        load(model_spec(path, "broken"), "cpu")


@pytest.mark.parametrize("family", ["llama", *slow("opt", "bloom")])
def test_only_requests_with_a_broken_token_fail(tmp_path: Path, family: str) -> None:
    """Though the others use blocks that held NaN: the pool is small."""
    # tied embeddings would make the token's own logit NaN for all
    path = edit(build_model(tmp_path / family, family, tie_word_embeddings=False), poison)
    spec = spec_of([path], num_columns=60 if family == "bloom" else 24, lane="mixed", max_seqs=4)
    if family == "bloom":
        spec = replace(spec, models=(replace(spec.models[0], max_model_len=64),))
    # words of noise must not be the broken token either: the same answers with it and without
    asked = prompts(family, 12, POISON, longest=24)
    poisoned = {
        name.replace(family, f"{family}/x", 1): [*tokens[:5], POISON, *tokens[5:]]
        for name, tokens in asked.items()
    }
    with running(spec) as (unit, sink):
        submit(unit, asked, greedy(8))
        sink.wait_for_ends(len(asked))
        expected = {name: list(tokens) for name, tokens in sink.tokens.items()}
        sink.clear()
        both = [name for pair in zip(poisoned, asked, strict=True) for name in pair]
        submit(unit, {name: (poisoned | asked)[name] for name in both}, greedy(8))
        sink.wait_for_ends(len(both))
        check_nothing_leaks(unit)
        stats = unit.stats()
    clean = [name for name in asked if POISON not in expected[name]]
    assert len(clean) > len(asked) // 2
    check_lengths(sink, clean, 8)
    assert {name: sink.tokens[name] for name in clean} == {name: expected[name] for name in clean}
    for name in poisoned:
        end = sink.ends[name].finished
        assert end is not None
        assert (end.reason, end.code) == (FinishReason.ERROR, "non_finite_logits")
        assert sink.tokens[name] == []
    assert stats.models[0].num_non_finite >= len(poisoned)


def test_metrics_count_requests_that_fail_so(tmp_path: Path) -> None:
    """Over HTTP: two prompts with the broken token and one without."""
    path = edit(build_model(tmp_path / "model", "llama", tie_word_embeddings=False), poison)
    file = tmp_path / "muxcluster.yaml"
    file.write_text(
        yaml.safe_dump(
            {
                "models": [{"name": "broken", "path": str(path), "max_model_len": 64}],
                "cluster": {"nodes": [{"name": "n", "gpu": "cpu", "cores": 1}]},
                "policy": {"partition": "none", "kv_gb": 0.01},
            }
        )
    )
    config = load_config(file)
    (spec,) = unit_specs(config, plan_for(config))

    async def main() -> tuple[list[int], list[str]]:
        unit = LocalUnitClient(spec)
        await unit.start()
        try:
            app = create_app(RoutedBackend(served_models(config), {"broken": unit}))
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://here") as http:
                found = []
                for prompt in ([5, POISON, 7], [5, 6, 7], [POISON]):
                    body = {"model": "broken", "prompt": prompt, "max_tokens": 1}
                    found.append((await http.post("/v1/completions", json=body)).status_code)
                counted = "muxcluster:non_finite_requests_total{"
                text = (await http.get("/metrics")).text
                return found, [line for line in text.splitlines() if line.startswith(counted)]
        finally:
            await unit.close()

    statuses, (line,) = asyncio.run(main())
    assert statuses == [500, 200, 500]
    assert line.endswith('model_name="broken"} 2.0')
