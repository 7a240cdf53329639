"""The bench of the real engine: what it counts, and its verdict, against numbers by hand."""

from pathlib import Path

import numpy as np
import pytest

from bench.hybrid.on_engine.load import BATCH, INTERACTIVE, Draws, Traffic
from bench.hybrid.on_engine.parts import (
    ALONE,
    BATCH_ALONE,
    OURS,
    Part,
    claims_of,
    decode_steps,
    samples_of,
    targets,
    verdict,
)
from bench.hybrid.on_engine.unit import running, unit_spec, write_configs
from muxcluster.core.request import ServiceClass, Slo
from muxcluster.core.served import JobRecord

TINY = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
}


def part(
    system: str, batch_per_s: float, ttft_s: tuple[float, ...] = (), rate: float = 0.0
) -> Part:
    """tpot: a tenth of the TTFT; jobs of 20 ms and one for each token; 30 tokens a request."""
    jobs = tuple(
        JobRecord(0, "m", "mixed", 0, 1.0, 1.0, 1.02 + 0.001 * tokens, 2, tokens)
        for tokens in (2, 30, 80)
    )
    tpot_s = tuple(value / 10 for value in ttft_s)
    return Part(system, 0, 10.0, rate, 30.0 * rate, batch_per_s, ttft_s, tpot_s, jobs)


ALONE_PARTS = (part(ALONE, 0.0, (0.1,), rate=4.0), part(BATCH_ALONE, 800.0))


def test_targets_are_over_all_requests_that_were_alone() -> None:
    slo = targets([part(ALONE, 0.0, (0.1,) * 100), part(ALONE, 0.0, (0.3,) * 100)])
    assert (slo.ttft_s, slo.tpot_s) == pytest.approx((1.25 * 0.3, 1.25 * 0.03))


def test_verdict_takes_the_interactive_work_off_what_batch_work_had() -> None:
    parts = [
        part(ALONE, 0.0, (0.1,)),
        part(BATCH_ALONE, 90.0),
        part(BATCH_ALONE, 110.0),
        part(OURS, 45.0, (0.2,) * 50, rate=4.0),
        part(OURS, 55.0, (0.4,) * 50, rate=4.0),
        part("fcfs", 1.0, (9.0,), rate=4.0),
    ]
    found = verdict(parts, OURS, Slo(0.5, 0.05), capacity_per_s=10.0)
    assert (found.ttft_ratio, found.tpot_ratio) == pytest.approx((0.8, 0.8))
    assert found.kept == pytest.approx(50.0 / (100.0 * 0.6))
    claims = {claim.name: (claim.value, claim.baseline) for claim in claims_of(found)}
    assert claims["interactive_ttft_p99_ratio"] == (0.8, 1.0)
    assert claims["batch_throughput_kept"] == (0.8333, 0.85)


@pytest.mark.parametrize(("tpot_s", "num_models", "longest_s"), [(0.05, 1, 0.05), (0.1, 2, 0.05)])
def test_what_any_packing_could_keep(tpot_s: float, num_models: int, longest_s: float) -> None:
    """Jobs of 50 ms have 30 tokens: 600 a second, of which 120 are interactive."""
    parts = [*ALONE_PARTS, part(OURS, 1.0, (0.2,), rate=4.0)]
    found = verdict(parts, OURS, Slo(0.5, tpot_s), 10.0, num_models)
    assert found.most_kept == pytest.approx((30 / longest_s - 120) / (800 * 0.6))


def test_jobs_are_no_longer_than_their_token_budget_allows() -> None:
    parts = [*ALONE_PARTS, part(OURS, 1.0, (0.2,), rate=4.0)]
    found = verdict(parts, OURS, Slo(0.5, 1.0), 10.0)
    assert found.most_kept == pytest.approx((80 / 0.1 - 120) / (800 * 0.6))


def test_decode_steps_are_those_of_a_token_a_row() -> None:
    found = decode_steps([part(OURS, 1.0), part(OURS, 1.0)])[OURS]
    assert found["count"] == 2
    assert found["ms"]["p50"] == pytest.approx(22.0)
    assert found["share_of_20_ms"] == 1.0


def test_every_request_is_among_the_samples() -> None:
    found = samples_of([part(OURS, 45.0, (0.2, 0.4)), part(BATCH_ALONE, 90.0)])
    assert found["ttft_ms hybrid, seed 0"] == [200.0, 400.0]
    assert found["tpot_ms hybrid, seed 0"] == [20.0, 40.0]
    assert found["batch_tokens_per_s batch alone, seed 0"] == [90.0]


def test_draws_are_those_of_the_seed_and_within_their_bounds() -> None:
    some, same = (Draws(("a", "b"), 128, seed=3) for _ in range(2))
    for number in range(200):
        request, again = some.one(INTERACTIVE, str(number)), same.one(INTERACTIVE, str(number))
        assert np.array_equal(request.prompt_tokens, again.prompt_tokens)
        assert request.model == again.model in ("a", "b")
        assert 16 <= len(request.prompt_tokens) <= 32
        assert 8 <= request.sampling.max_tokens <= 16


def test_both_classes_through_a_unit_are_answered_and_counted(tmp_path: Path) -> None:
    paths = write_configs(tmp_path, {"one": TINY, "two": TINY})
    traffic = Traffic()
    with running(unit_spec(paths, "hybrid", Slo(1.0, 0.5)), traffic.hear) as unit:
        traffic.attach(unit)
        traffic.loop(BATCH, Draws(tuple(paths), 128, seed=1), 8)
        answers = traffic.poisson(INTERACTIVE, Draws(tuple(paths), 128, seed=0), 50.0, 20)
        traffic.stop()
        assert unit.num_open == 0
    wanted = sum(
        len(answer.request.prompt_tokens) + answer.request.sampling.max_tokens for answer in answers
    )
    assert traffic.tokens_between(0.0, np.inf, ServiceClass.INTERACTIVE) == wanted
    assert traffic.tokens_between(0.0, np.inf, ServiceClass.BATCH) > 0
    assert traffic.tokens_between(0.0, answers[0].due_s - 60.0, ServiceClass.INTERACTIVE) == 0
    for answer in answers:
        assert answer.is_whole
        assert 0.0 < answer.ttft_s <= answer.times_s[-1] - answer.due_s
        assert answer.tpot_s > 0.0
