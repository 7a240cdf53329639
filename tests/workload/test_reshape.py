"""Streams made of others, and summaries, by hand and by property."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muxcluster.workload.arrival import Arrival, Prefix
from muxcluster.workload.reshape import assigned, between, shortened, sped_up
from muxcluster.workload.summary import summarise, table


def stream(count: int = 1000) -> list[Arrival]:
    return [Arrival(i / 10, f"r{i}", "m", 100 + i % 50, 20, prefix=None) for i in range(count)]


def test_streams_are_cut_and_sped_up() -> None:
    part = list(between(stream(), 10.0, 20.0))
    assert [arrival.request_id for arrival in part] == [f"r{i}" for i in range(100, 200)]
    assert part[0].time_s == 0.0 and part[-1].time_s == pytest.approx(9.9)
    fast = list(sped_up(stream(), 4.0))
    assert fast[400].time_s == 10.0


def test_streams_are_given_to_models_by_rate() -> None:
    found = list(assigned(stream(10_000), {"a": 3.0, "b": 1.0, "never": 0.0}, 0))
    share = sum(arrival.model == "a" for arrival in found) / 10_000
    assert share == pytest.approx(0.75, abs=0.02)
    assert {arrival.model for arrival in found} == {"a", "b"}
    assert found == list(assigned(stream(10_000), {"a": 3.0, "b": 1.0, "never": 0.0}, 0))
    assert [arrival.request_id for arrival in found] == [a.request_id for a in stream(10_000)]


@given(st.integers(1, 9000), st.integers(1, 600), st.floats(1, 700), st.integers(1, 500))
def test_shortened_prompts_keep_their_blocks(
    prompt: int, block_tokens: int, divisor: float, most: int
) -> None:
    count = -(-prompt // block_tokens)
    whole = Arrival(0.0, "r", "m", prompt, prompt, prefix=Prefix(tuple(range(count)), block_tokens))
    (short,) = shortened([whole], divisor, most, most)
    assert 1 <= short.prompt_tokens <= most and short.prompt_tokens <= max(1, prompt)
    assert short.prefix is not None
    wanted = -(-short.prompt_tokens // short.prefix.block_tokens)
    assert short.prefix.block_ids == tuple(range(wanted))
    assert len(short.prefix.token_ids(short.prompt_tokens)) == short.prompt_tokens


def test_summary_by_hand() -> None:
    found = summarise(
        [
            Arrival(0.0, "1", "a", 32, 10, prefix=Prefix((1, 2), 16)),
            Arrival(1.0, "2", "b", 5, 1),
            Arrival(2.0, "3", "a", 40, 20, prefix=Prefix((1, 2, 3), 16)),
            Arrival(6.0, "4", "a", 20, 30, prefix=Prefix((1, 9), 16)),
            Arrival(8.0, "5", "a", 8, 40, prefix=Prefix((7,), 16)),
        ]
    )
    first, second = found
    assert (first.model, first.num_requests, first.rate_per_s) == ("a", 4, 0.5)
    assert first.gap_cv == pytest.approx((8 / 9) ** 0.5 / (8 / 3))  # gaps 2, 4, 2
    assert first.prompt_tokens.mean == 25.0 and first.output_tokens.p50 == 25.0
    assert first.seen_share == pytest.approx((32 + 16) / 100)
    assert second.num_requests == 1 and second.seen_share == 0.0
    lines = table(found).splitlines()
    assert len(lines) == 3 and len({len(line) for line in lines}) == 1
    assert lines[1].split()[:3] == ["a", "4", "0.5"] and "48.0%" in lines[1]
