"""A model with states over HTTP beside a Llama: planned, served, streamed, left in the middle."""

import asyncio
from pathlib import Path

from tests.engine.conftest import ModelBuilder
from tests.engine.dense.test_http import MANY_TOKENS, NUM_TOKENS, body_of, serving, streamed
from tests.engine.units import check_nothing_leaks, prompts
from tests.oracles import GreedyOracle

FAMILIES = ("qwen3_next", "llama")


def test_streams_are_hugging_faces_and_cancelled_ones_leave_nothing(
    tiny: ModelBuilder, tmp_path: Path
) -> None:
    models = [f"  - {{name: {name}, path: {tiny(name)}, max_model_len: 512}}" for name in FAMILIES]
    policy = "policy: {kv_gb: 0.05, num_threads: 1, partition: none}"
    file = tmp_path / "muxcluster.yaml"
    file.write_text("\n".join(["models:", *models, policy]), "utf-8")
    flat = [
        (name, prompt)
        for name in FAMILIES
        for prompt in prompts(name, 3, 512, shared=24, longest=60).values()
    ]

    async def run() -> dict[tuple[int, ...], list[int]]:
        async with serving(file) as (unit, http):
            left = [
                streamed(http, body_of(name, prompt, MANY_TOKENS), most=3) for name, prompt in flat
            ]
            whole = [streamed(http, body_of(name, prompt, NUM_TOKENS)) for name, prompt in flat]
            assert all(await asyncio.gather(*whole, *left)), "a stream says nothing"
            while unit.unit.num_open:
                await asyncio.sleep(0.02)
            stats = {model.name: model for model in unit.unit.stats().models}
            found = {name: each.backend for name, each in stats.items()}
            assert found == {"qwen3_next": "paged, states", "llama": "paged"}
            assert stats["qwen3_next"].prefix_hits == 0
            num_output = sum(model.output_tokens for model in stats.values())
            assert num_output < len(flat) * (NUM_TOKENS + MANY_TOKENS), "nobody was cancelled"
            check_nothing_leaks(unit.unit)
            return unit.tokens

    found = asyncio.run(run())
    oracles = {name: GreedyOracle(tiny(name)) for name in FAMILIES}
    for name, prompt in flat:
        oracles[name].check(prompt, found[tuple(prompt)])
    assert sum(oracle.num_near_ties for oracle in oracles.values()) <= 1
