"""Coalesced decode steps find what single steps find, with far fewer jobs."""

import numpy as np
import pytest

from muxcluster.sim.simulate import SimResult, simulate
from tests.sim.cases import arrivals, sim_unit


def means(result: SimResult) -> tuple[float, float, float]:
    """Mean TTFT, time per token after the first, and latency."""
    rows = result.records.rows
    tokens = np.maximum(rows["output_tokens"] - 1, 1)
    decode_s = rows["last_token_s"] - rows["first_token_s"]
    ttft_s = rows["first_token_s"] - rows["arrival_s"]
    latency_s = rows["last_token_s"] - rows["arrival_s"]
    return float(ttft_s.mean()), float((decode_s / tokens).mean()), float(latency_s.mean())


@pytest.mark.parametrize("models", [("a",), ("a", "b")])
@pytest.mark.parametrize("lane", ["adbs", "temporal"])
def test_light_load_is_the_same_with_a_fraction_of_the_jobs(
    lane: str, models: tuple[str, ...]
) -> None:
    asked = arrivals(150, 4.0, models)
    exact, coalesced = (
        simulate([sim_unit(models=models, lane=lane)], asked, exact=exact)
        for exact in (True, False)
    )
    assert coalesced.num_jobs < exact.num_jobs / 2
    assert means(coalesced) == pytest.approx(means(exact), rel=0.02)


def test_one_model_alone_is_the_same_request_by_request() -> None:
    asked = arrivals(150, 3.0, ("a",))
    exact, coalesced = (
        np.sort(
            simulate([sim_unit(models=("a",), lane="temporal")], asked, exact=exact).records.rows,
            order="arrival_s",
        )
        for exact in (True, False)
    )
    for column in ("first_token_s", "last_token_s"):
        apart = np.abs(coalesced[column] - exact[column])
        assert apart.max() < 0.05, column


def test_scarce_memory_admits_alike() -> None:
    asked = arrivals(120, 20.0)
    exact, coalesced = (
        simulate([sim_unit(num_columns=400)], asked, exact=exact) for exact in (True, False)
    )
    assert coalesced.end_s == pytest.approx(exact.end_s, rel=0.02)
    assert means(coalesced)[2] == pytest.approx(means(exact)[2], rel=0.03)
