"""Arrivals have the rate, the variation and the independence they are asked for."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.traces.steps import Steps
from muxcluster.core.request import ServiceClass
from muxcluster.workload.arrival import Arrival, Prefix, merged
from muxcluster.workload.generate import Source, generate
from muxcluster.workload.lengths import Independent, Pairs
from muxcluster.workload.marginals import Constant, LogNormal
from muxcluster.workload.popularity import power_law_rates, shares
from muxcluster.workload.processes import Deterministic, Gamma, Poisson, Process
from muxcluster.workload.seeds import rng_for

SHORT = Independent(Constant(8), Constant(2))


def times_of(process: Process, end_s: float, seed: int = 0) -> np.ndarray:
    found = list(process.times(np.random.default_rng(seed), end_s))
    return np.concatenate(found) if found else np.empty(0)


def counts(process: Process, spans: int, span_s: float) -> np.ndarray:
    """Arrivals in each of many spans from the start, of as many seeds."""
    return np.array([len(times_of(process, span_s, seed)) for seed in range(spans)])


@pytest.mark.parametrize(
    ("process", "cv"),
    [(Poisson(5.0), 1.0), (Gamma(5.0, 0.5), 0.5), (Gamma(5.0, 3.0), 3.0), (Deterministic(5.0), 0)],
)
def test_rate_and_variation(process: Process, cv: float) -> None:
    times = times_of(process, 4000.0)
    gaps = np.diff(times)
    assert (gaps >= 0).all() and times[0] >= 0 and times[-1] < 4000.0
    assert len(times) / 4000.0 == pytest.approx(5.0, rel=0.01 + 0.02 * cv)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.1, abs=1e-9)


def test_bursty_arrivals_keep_their_rate_from_the_first_second() -> None:
    # an ordinary first gap would give 20 + (16 - 1) / 2 = 27.5 (renewal theory)
    found = counts(Gamma(2.0, 4.0), 1500, 10.0)
    assert found.mean() == pytest.approx(20.0, abs=4 * found.std() / math.sqrt(1500))
    assert abs(found.mean() - 27.5) > 8 * found.std() / math.sqrt(1500)


def test_poisson_counts_are_poisson() -> None:
    found = counts(Poisson(3.0), 1500, 4.0)
    assert found.mean() == pytest.approx(12.0, rel=0.03)
    assert found.var() == pytest.approx(12.0, rel=0.15)
    assert (found == 12).mean() == pytest.approx(
        math.exp(-12) * 12**12 / math.factorial(12), abs=0.03
    )


@pytest.mark.parametrize("make", [Poisson, lambda rate: Gamma(rate, 2.0)])
def test_another_rate_only_scales_the_times(make: type[Poisson]) -> None:
    slow, fast = times_of(make(1.0), 3000.0), times_of(make(4.0), 750.0)
    assert fast * 4.0 == pytest.approx(slow)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Poisson(0.0),
        lambda: Poisson(math.inf),
        lambda: Deterministic(-1.0),
        lambda: Gamma(1.0, 0.0),
        lambda: Steps((), ()),
        lambda: Steps((1.0,), (1.0,)),
        lambda: Steps((0.0, 2.0, 1.0), (1.0, 1.0, 1.0)),
        lambda: Steps((0.0,), (1.0, 2.0)),
        lambda: Steps((0.0,), (-1.0,)),
        lambda: power_law_rates(0, 1.0, 1.0),
        lambda: power_law_rates(3, -1.0, 1.0),
        lambda: shares([0.0]),
        lambda: shares([1.0, -1.0]),
        lambda: generate([Source("a", Poisson(1.0), SHORT)] * 2, 0, 1.0),
        lambda: generate([], 0, 0.0),
    ],
)
def test_numbers_out_of_range_are_refused(make: object) -> None:
    assert callable(make)
    with pytest.raises(ValueError, match="needs|expected|must"):
        make()


@given(st.integers(1, 30), st.floats(0, 3), st.floats(0.1, 100))
def test_power_law(num_models: int, alpha: float, max_rate: float) -> None:
    rates = power_law_rates(num_models, alpha, max_rate)
    assert rates[0] == max_rate and len(rates) == num_models
    for rank, rate in enumerate(rates, start=1):
        assert math.log(rate) == pytest.approx(
            math.log(max_rate) - alpha * math.log(rank), abs=1e-9
        )
    assert shares(rates).sum() == pytest.approx(1.0)


def test_a_generated_workload_is_ordered_unique_and_within_its_time() -> None:
    sources = [
        Source("a", Poisson(20.0), Independent(LogNormal(4.0, 1.0), Constant(3))),
        Source("b", Gamma(5.0, 2.0), SHORT),
        Source("b", Deterministic(1.0), SHORT, ServiceClass.BATCH),
    ]
    found = list(generate(sources, 1, 300.0))
    times = [arrival.time_s for arrival in found]
    assert times == sorted(times) and times[0] >= 0 and times[-1] < 300.0
    assert len({arrival.request_id for arrival in found}) == len(found)
    batch = [arrival for arrival in found if arrival.service_class is ServiceClass.BATCH]
    assert len(batch) == 300 and all(arrival.model == "b" for arrival in batch)
    assert sum(arrival.model == "a" for arrival in found) == pytest.approx(6000, rel=0.05)


def test_a_model_keeps_its_requests_whoever_else_is_there() -> None:
    first = Source("a", Poisson(20.0), Independent(LogNormal(4.0, 1.0), LogNormal(3.0, 0.5)))
    other = Source("b", Poisson(20.0), SHORT)
    alone = list(generate([first], 7, 50.0))
    among = [arrival for arrival in generate([other, first], 7, 50.0) if arrival.model == "a"]
    assert alone == among and alone != list(generate([first], 8, 50.0))
    # times and lengths have numbers of their own: other lengths, same times
    short = generate([Source("a", Poisson(20.0), SHORT)], 7, 50.0)
    assert [arrival.time_s for arrival in short] == [arrival.time_s for arrival in alone]


def test_models_are_independent_of_each_other() -> None:
    sources = [Source(name, Poisson(10.0), SHORT) for name in "ab"]
    binned = {name: np.zeros(1000) for name in "ab"}
    for arrival in generate(sources, 0, 1000.0):
        binned[arrival.model][int(arrival.time_s)] += 1
    assert abs(np.corrcoef(binned["a"], binned["b"])[0, 1]) < 0.12


def test_generators_are_told_apart_by_every_part_of_their_name() -> None:
    names = [(0, "a"), (1, "a"), (0, "b"), (0, "a", "b"), (0, "ab")]
    draws = {rng_for(seed, *rest).random() for seed, *rest in names}
    assert len(draws) == len(names) and rng_for(3, "x").random() == rng_for(3, "x").random()


@given(st.lists(st.lists(st.integers(0, 50), max_size=8), max_size=5))
def test_merging_is_sorting_and_stable(streams: list[list[int]]) -> None:
    made = [
        [Arrival(float(t), f"{i}/{j}", str(i), 1, 1) for j, t in enumerate(sorted(stream))]
        for i, stream in enumerate(streams)
    ]
    flat = [arrival for stream in made for arrival in stream]
    assert list(merged(made)) == sorted(flat, key=lambda arrival: arrival.time_s)


blocks = st.lists(st.integers(0, 3), min_size=1, max_size=6)


@given(blocks, blocks, st.integers(1, 5))
def test_stand_in_tokens_agree_as_far_as_blocks_do(
    left: list[int], right: list[int], block_tokens: int
) -> None:
    one, other = (
        Prefix(tuple(ids), block_tokens).token_ids(len(ids) * block_tokens) for ids in (left, right)
    )
    same_blocks = next(
        (i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), None
    )
    same_tokens = next(
        (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), None
    )
    assert same_tokens == (None if same_blocks is None else same_blocks * block_tokens)
    assert len(one) == len(left) * block_tokens and one.dtype == np.int32


def test_pairs_stay_together() -> None:
    pairs = Pairs(np.arange(1, 101), np.arange(1, 101) * 2)
    prompt, output = pairs.draw(np.random.default_rng(0), 5000)
    assert (output == 2 * prompt).all() and set(prompt.tolist()) == set(range(1, 101))
