"""The published runs' scheduler: fixed shares up to 120 %, prefills that hold decodes back."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from bench.muxserve.artifact.lane import GIVEN_OUT, part_of, share_of
from bench.muxserve.artifact.published import Mesh, Run, Served, read_runs
from bench.muxserve.artifact.reference import GPU, units_of_run
from muxcluster.placement.cost import Roofline
from muxcluster.sim.core.simulate import SimResult, simulate
from muxcluster.sim.core.timeline import JobSpan
from muxcluster.workload.arrival import Arrival

_SMALL = Served("small", "llama-7b", 10.0, 1, 161, 255, 0.8, 0.4, 1.0)
_MIDDLE = Served("middle", "llama-13b", 2.0, 1, 161, 255, 0.9, 0.3, 1.0)
_LARGE = Served("large", "llama-65b", 0.5, 1, 161, 255, 1.0, 0.3, 1.0)
_SHARES = {
    (model.name, phase): share
    for model in (_SMALL, _MIDDLE, _LARGE)
    for phase, share in (("prefill", model.prefill_share), ("decode", model.decode_share))
}


def _simulated(arrivals: Sequence[Arrival], *, exact: bool) -> tuple[SimResult, list[JobSpan]]:
    spans: list[JobSpan] = []
    run = Run("p", "muxserve", (Mesh(8, 0.5, (_SMALL, _MIDDLE, _LARGE)),), has_shares=True)
    units = units_of_run(run, Roofline(GPU))
    return simulate(units, arrivals, exact=exact, on_job=spans.append), spans


def _crowd() -> list[Arrival]:
    rng = np.random.default_rng(0)
    times = np.sort(rng.uniform(0.0, 1.0, 60)).tolist()
    names = rng.choice(("small", "small", "middle", "large"), len(times)).tolist()
    return [
        Arrival(time_s, f"r{index}", name, 100 + index, 20 + index)
        for index, (time_s, name) in enumerate(zip(times, names, strict=True))
    ]


def _run_together(one: JobSpan, other: JobSpan) -> bool:
    return one.start_s < other.end_s - 1e-9 and other.start_s < one.end_s - 1e-9


@pytest.fixture(scope="module")
def spans() -> list[JobSpan]:
    """Jobs of all three models, crowded."""
    return _simulated(_crowd(), exact=True)[1]


def test_parts_are_shares_again() -> None:
    for percent in range(10, 101, 10):
        assert share_of(part_of(percent / 100)) == percent / 100
    assert part_of(0.9) + part_of(0.3) == pytest.approx(1.0)


def test_chatlmsys_runs_have_the_shares_that_were_logged(data_dir: Path) -> None:
    """Baselines ran one job at a time: 100 and 90 % are more than 120 %."""
    runs = [run for run in read_runs(data_dir) if run.has_shares]
    assert [run.system for run in runs] == ["muxserve", "spatial", "temporal"] * 2
    found = {run.system: {(m.prefill_share, m.decode_share) for m in run.models} for run in runs}
    assert found["spatial"] == found["temporal"] == {(1.0, 0.9)}
    # the greater of both is the prefills', also of "80/90"
    assert {(0.9, 0.3), (0.9, 0.8), (1.0, 0.6)} <= found["muxserve"]
    for run in runs:
        for unit in units_of_run(run, Roofline(GPU)):
            prefill, *decodes = unit.spec.workers
            assert len(decodes) == len(unit.models)
            if run.system != "muxserve":
                assert all(prefill.shares[0] + each.shares[0] > 1.0 for each in decodes)


def test_jobs_side_by_side_have_their_own_shares_and_at_most_what_is_given_out(
    spans: list[JobSpan],
) -> None:
    assert {(span.model, span.phase) for span in spans} == set(_SHARES)
    assert all(share_of(span.share) == _SHARES[span.model, span.phase] for span in spans)
    most = 0.0
    pairs = set()
    for span in spans:
        beside = [each for each in spans if each.start_s <= span.start_s < each.end_s - 1e-9]
        most = max(most, sum(share_of(each.share) for each in beside))
        pairs |= {(span.model, each.model) for each in beside if each.phase == span.phase}
        assert sum(each.phase == "prefill" for each in beside) <= 1
        assert len({(each.model, each.phase) for each in beside}) == len(beside)
    assert most == pytest.approx(GIVEN_OUT)
    names = ("small", "middle", "large")
    assert pairs == {(one, other) for one in names for other in names}


def test_what_runs_beside_a_prefill_fits_beside_its_share(spans: list[JobSpan]) -> None:
    """0.8 + 0.4 and 0.9 + 0.3 are 1.2; 1.0 leaves nobody else a process that small."""
    beside = {
        (prefill.model, decode.model)
        for prefill in spans
        for decode in spans
        if (prefill.phase, decode.phase) == ("prefill", "decode") and _run_together(prefill, decode)
    }
    assert beside <= {
        (prefill, decode)
        for prefill in ("small", "middle", "large")
        for decode in ("small", "middle", "large")
        if _SHARES[prefill, "prefill"] + _SHARES[decode, "decode"] < GIVEN_OUT + 1e-6
    }
    assert ("small", "small") in beside
    assert not any(prefill == "large" for prefill, _ in beside)


def test_a_prefill_that_waits_for_sms_lets_no_decode_start() -> None:
    arrivals = [Arrival(0.0, "first", "small", 50, 1000), Arrival(0.2, "next", "large", 50, 20)]
    _, spans = _simulated(arrivals, exact=True)
    waiting = next(span for span in spans if (span.model, span.phase) == ("large", "prefill"))
    running = next(span for span in spans if span.start_s <= 0.2 < span.end_s)
    assert running.phase == "decode"
    assert waiting.start_s == pytest.approx(running.end_s)
    held = [span for span in spans if 0.2 < span.start_s < waiting.end_s and span is not waiting]
    assert held == []


def test_other_models_prefill_while_one_waits_for_sms() -> None:
    """While a decode has 0.3, a prefill of 1.0 waits, and one of 0.9, later in turn, does not."""
    arrivals = [
        Arrival(0.0, "decodes", "middle", 50, 1000),
        Arrival(0.2, "large", "large", 50, 20),
        Arrival(0.2, "again", "middle", 50, 20),
    ]
    _, spans = _simulated(arrivals, exact=True)
    running = next(span for span in spans if span.start_s <= 0.2 < span.end_s)
    prefill = next(
        span for span in spans if span.phase == "prefill" and span.start_s > running.start_s
    )
    assert (prefill.model, prefill.start_s) == ("middle", 0.2)


def test_steps_that_repeat_are_simulated_alike() -> None:
    one_by_one, _ = _simulated(_crowd(), exact=True)
    together, _ = _simulated(_crowd(), exact=False)
    assert together.num_jobs < one_by_one.num_jobs
    for column in ("first_token_s", "last_token_s"):
        np.testing.assert_allclose(
            np.sort(together.records.rows[column]), np.sort(one_by_one.records.rows[column])
        )
