"""BatchLLM's benches, tiny: systems, savings, valleys and claims against numbers by hand."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench.offline import batchllm
from bench.offline.prefix_groups.cases import CASE_1, CASE_2, LADDER, run_case, valleys
from bench.offline.prefix_groups.unit import (
    BATCHLLM,
    BLOCK_TOKENS,
    BOTH,
    BOTH_MANY,
    CHUNK,
    CHUNKED,
    GROUPED,
    PREFIX,
    RESOURCES,
    VLLM,
    Steps,
    run,
)
from bench.offline.savings import Levels, real_jobs, saving_of
from muxcluster.offline.choice import Unplanned
from muxcluster.offline.prefix.prompts import flat_prompts


def test_each_system_differs_as_its_name_says() -> None:
    ran = run_case(CASE_1, LADDER, 80, seed=0)
    saving = {name: each.saving for name, each in ran.outcomes.items()}
    assert saving[VLLM.name] == saving[CHUNKED.name] == 0
    assert 0 < saving[PREFIX.name] < ran.optimum
    assert 0 < saving[BOTH.name] <= ran.lru < ran.optimum
    assert saving[GROUPED.name] == saving[BATCHLLM.name] == pytest.approx(ran.optimum, abs=1e-12)
    longest = {name: each.steps.tokens.max() for name, each in ran.outcomes.items()}
    assert longest[BOTH.name] <= CHUNK < longest[PREFIX.name]
    # whole prompts and decoding rows never run together
    steps = ran.outcomes[PREFIX.name].steps
    assert np.isin(steps.prompt_tokens, (0.0,)).any()
    assert (
        steps.prompt_tokens[steps.prompt_tokens > 0] == steps.tokens[steps.prompt_tokens > 0]
    ).all()
    assert ran.makespan_s(VLLM) > ran.makespan_s(BOTH) > ran.makespan_s(BATCHLLM)
    assert ran.speedup == min(ran.makespan_s(BOTH), ran.makespan_s(BOTH_MANY)) / ran.makespan_s(
        BATCHLLM
    )


def test_every_token_is_in_a_step() -> None:
    job = replace(CASE_1.job(40, seed=1), size_bytes=20e9)
    found = run(job, CHUNKED)
    assert found.num_recomputed == 0
    # a request's first token comes with its prompt
    expected = job.prompts.lengths.sum() + (job.output_tokens - 1).sum()
    assert found.steps.tokens.sum() == expected
    assert (np.diff(found.steps.end_s) > 0).all()
    assert found.steps.end_s[-1] == pytest.approx(found.makespan_s)
    assert 0 < found.steps.cool_down_s < found.makespan_s


def test_groups_of_case_2_are_as_large_as_published() -> None:
    low, high = CASE_2.kinds
    assert (low.degree, high.degree) == (11, 12)
    groups = [kind.share / kind.degree for kind in CASE_2.kinds]
    assert 1 / sum(groups) == pytest.approx(11.36)
    assert low.share + high.share == pytest.approx(1)


def test_valleys_are_means_and_least_of_their_spans() -> None:
    steps = Steps(
        np.array([0.5, 1.0, 1.5, 3.0]), np.array([10.0, 30.0, 7.0, 5.0]), np.array([1.0, 2, 0, 0])
    )
    found = valleys(steps, [0.0, 1.0, 2.0, 2.5, 3.0])
    assert found == {"mean": [20.0, 7.0, 0.0, 5.0], "least": [10.0, 7.0, 0.0, 5.0]}
    assert steps.cool_down_s == 1.0


def test_savings_of_two_levels_by_hand() -> None:
    """A group of four shares 32 tokens, two of them 64 more; one request shares nothing."""
    stem, branch = np.arange(32), np.arange(100, 164)
    ends = [np.arange(1000 * i, 1000 * i + 16) for i in range(1, 5)]
    prompts = [
        np.concatenate(parts)
        for parts in (
            (stem, branch, ends[0]),
            (stem, ends[1]),
            (np.arange(5000, 5016),),
            (stem, branch, ends[2]),
            (stem, ends[3]),
        )
    ]
    offsets = np.concatenate(([0], np.cumsum([len(each) for each in prompts])))
    job = Unplanned(
        flat_prompts(np.concatenate(prompts).astype(np.int32), offsets),
        np.full(5, 3),
        RESOURCES,
        3e9,
        BLOCK_TOKENS,
    )
    found = saving_of("two levels", job)
    total = 112 + 48 + 16 + 112 + 48
    assert found.prompt_tokens == total
    # 3 × 32 and 64; of one level: all four at 32, or two of them at 96 and the others at 32
    assert found.tokens == Levels(160 / total, 128 / total, 128 / total)
    assert found.batchllm == found.fcfs == found.lru == 160 / total
    assert found.blocks is None
    assert found.lru_of_plan < found.lru


def test_servegens_jobs_reach_their_optimum(data_dir: Path) -> None:
    known = {"servegen a": (0.464, 0.464, 0.464), "servegen b": (0.543, 0.478, 0.478)}
    jobs = dict(real_jobs(data_dir, 0, tuple(known)))
    assert set(jobs) == set(known)
    for name, job in jobs.items():
        found = saving_of(name, job)
        assert found.blocks is not None
        levels = (found.blocks.optimum, found.blocks.greedy, found.blocks.one_level)
        assert levels == pytest.approx(known[name], abs=5e-4)
        assert found.batchllm == pytest.approx(found.tokens.optimum, abs=1e-12)


def test_the_bench_runs_and_tells_its_claims(tmp_path: Path) -> None:
    record, picture = tmp_path / "record.json", tmp_path / "valleys.svg"
    small = ["--requests", "16", "--processes", "1"]
    batchllm.main([*small, "--json", str(record), "--plot", str(picture)])
    content = json.loads(record.read_text())
    claims = {claim["name"]: claim for claim in content["claims"]}
    assert claims["saving_ratio"]["value"] == pytest.approx(claims["saving_ratio"]["baseline"])
    assert claims["saving_ratio_lru"]["baseline"] == claims["saving_ratio"]["value"]
    speedups = [claims[f"speedup_over_prefix_cache_{end}"]["value"] for end in ("min", "max")]
    assert speedups == [min(content["samples"]["speedup"]), max(content["samples"]["speedup"])]
    assert [row["case"] for row in content["cases"]] == ["case 1", "case 2", "two kinds of groups"]
    assert len(content["micro"]) == 6
    text = picture.read_text()
    for name in content["valleys"]["systems"]:
        assert name in text
