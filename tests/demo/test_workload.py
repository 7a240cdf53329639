"""The burst follows its trace, or the trace's published statistics, and repeats by seed."""

from pathlib import Path

import numpy as np
import pytest

from muxcluster.demo.workload import (
    AZURE_CONV,
    TRACE,
    BurstSize,
    Scale,
    generated_rows,
    make_burst,
    popularity,
    trace_rows,
)

MODELS = ("large", "middle", "small")


def test_popularity_is_a_power_law() -> None:
    shares = popularity(3, exponent=1.0)
    assert shares.sum() == pytest.approx(1.0)
    assert shares[0] / shares[1] == pytest.approx(2.0)
    assert shares[0] / shares[2] == pytest.approx(3.0)


def test_generated_rows_have_the_published_statistics() -> None:
    rows = generated_rows(AZURE_CONV, 200_000, np.random.default_rng(3))
    gaps = np.diff(rows.arrival_s)
    assert 1.0 / gaps.mean() == pytest.approx(5.53, rel=0.02)
    assert gaps.std() / gaps.mean() == pytest.approx(1.09, rel=0.02)
    assert rows.prompt_tokens.mean() == pytest.approx(1155, rel=0.02)
    assert np.median(rows.prompt_tokens) == pytest.approx(1020, rel=0.02)
    assert rows.output_tokens.mean() == pytest.approx(211, rel=0.02)
    assert np.median(rows.output_tokens) == pytest.approx(129, rel=0.02)


def test_the_trace_agrees_with_its_published_statistics(data_dir: Path) -> None:
    rows = trace_rows(data_dir / TRACE, 10_000)
    gaps = np.diff(rows.arrival_s)
    assert rows.arrival_s[0] == 0.0 and (gaps >= 0).all()
    # The half hour at hand is a part of the hour the statistics describe.
    assert 1.0 / gaps.mean() == pytest.approx(AZURE_CONV.rate_per_s, rel=0.1)
    assert rows.prompt_tokens.mean() == pytest.approx(AZURE_CONV.prompt_mean, rel=0.2)


def test_a_burst_repeats_by_seed_and_keeps_its_limits() -> None:
    size, scale = BurstSize(200, 20.0, seed=5), Scale(most_prompt=100, most_output=40)
    burst = make_burst(MODELS, size, scale, None)
    assert burst == make_burst(MODELS, size, scale, None)
    assert burst != make_burst(MODELS, BurstSize(200, 20.0, seed=6), scale, None)
    times = [request.at_s for request in burst.requests]
    assert times == sorted(times) and times[0] == 0.0 and times[-1] == pytest.approx(20.0)
    assert all(4 <= request.prompt_tokens <= 100 for request in burst.requests)
    assert all(4 <= request.output_tokens <= 40 for request in burst.requests)
    counts = [sum(request.model == model for request in burst.requests) for model in MODELS]
    assert sum(counts) == 200 and counts[0] > counts[1] > counts[2] > 0


def test_a_burst_says_where_it_comes_from(data_dir: Path, tmp_path: Path) -> None:
    from_trace = make_burst(MODELS, BurstSize(), Scale(), data_dir)
    assert TRACE.name in from_trace.source and "divided by 16" in from_trace.source
    generated = make_burst(MODELS, BurstSize(), Scale(), tmp_path)
    assert "published statistics" in generated.source


def test_lengths_and_gaps_are_the_traces_own(tmp_path: Path) -> None:
    (tmp_path / TRACE.parent).mkdir()
    (tmp_path / TRACE).write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,320,80\n"
        "2023-11-16 18:15:47.6805900,3200,8000\n"
        "2023-11-16 18:15:50.6805900,16,8\n"
    )
    burst = make_burst(MODELS, BurstSize(3, 8.0), Scale(), tmp_path)
    assert [request.at_s for request in burst.requests] == pytest.approx([0.0, 2.0, 8.0])
    assert [request.prompt_tokens for request in burst.requests] == [20, 160, 4]
    assert [request.output_tokens for request in burst.requests] == [20, 96, 4]
