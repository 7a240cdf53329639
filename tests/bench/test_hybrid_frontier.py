"""Parts of BROS's batch loss and the least one, against numbers by hand."""

from math import inf
from typing import Any

import pytest

from bench.hybrid.frontier import Exchange, least_loss, losses

OURS = "ours"


def row(rate: float, system: str, served: float, batch: float, in_time: float) -> dict[str, Any]:
    return {
        "setup": "s",
        "rate_per_s": rate,
        "system": system,
        "interactive_per_s": [served, 0.0],
        "batch_tokens_per_s": [batch, 0.0],
        "ttft_attainment": [in_time, 0.0],
    }


# A request costs 100 batch tokens, of which there are 1,000/s without any; 8/s are served at most.
ROWS = (
    row(4.0, "fcfs", 3.0, 500.0, 0.1),
    row(4.0, OURS, 4.0, 600.0, 1.0),
    row(10.0, "fcfs", 5.0, 400.0, 0.0),
    row(10.0, OURS, 8.0, 200.0, 0.5),
)


def test_the_price_of_a_request_is_fitted_to_our_own_rows() -> None:
    found = Exchange.of([each for each in ROWS if each["system"] == OURS])
    assert (found.alone, found.cost, found.most_served) == pytest.approx((1000.0, 100.0, 8.0))


def test_a_loss_is_what_more_requests_cost_and_the_rest() -> None:
    calm, full = losses(ROWS, OURS)
    assert (calm.lost, calm.by_served, calm.by_all_else) == pytest.approx((-0.2, 0.2, -0.4))
    assert (full.lost, full.by_served, full.by_all_else) == pytest.approx((0.5, 0.75, -0.25))
    assert (calm.in_time, full.in_time) == (1.0, 0.5)


def test_the_least_loss_serves_those_in_time_alone_and_is_late_where_that_pays_most() -> None:
    """At 10/s a percent of the requests is worth 10 of 400 tokens, at 4/s it is 4 of 500."""
    assert least_loss(ROWS, OURS, 0.9) == pytest.approx(1 - (600 / 500 + 200 / 400) / 2)
    assert least_loss(ROWS, OURS, 0.8) == pytest.approx(1 - (600 / 500 + 400 / 400) / 2)
    assert least_loss(ROWS, OURS, 0.4) == pytest.approx(1 - (680 / 500 + 1000 / 400) / 2)
    assert least_loss(ROWS, OURS, 0.95) == inf
