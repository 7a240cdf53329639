"""The published runs' scheduler: fixed shares up to 120 %, prefills that hold decodes back."""

from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from bench.muxserve.artifact.lane import GIVEN_OUT, part_of, share_of
from bench.muxserve.artifact.published import Mesh, Run, Served, process_shares, read_runs
from bench.muxserve.artifact.reference import GPU, units_of_run
from bench.traces.muxserve import read_decode_shares
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
    run = Run("p", "muxserve", (Mesh(8, 0.5, (_SMALL, _MIDDLE, _LARGE)),))
    units = units_of_run(run, Roofline(GPU))
    return simulate(units, arrivals, exact=exact, on_job=spans.append), spans


def _crowd() -> list[Arrival]:
    rng = np.random.default_rng(0)
    times = np.sort(rng.uniform(0.0, 6.0, 60)).tolist()
    names = rng.choice(("small", "small", "middle", "large"), len(times)).tolist()
    return [
        Arrival(time_s, f"r{index}", name, 100 + index, 20 + index)
        for index, (time_s, name) in enumerate(zip(times, names, strict=True))
    ]


def _run_together(one: JobSpan, other: JobSpan) -> bool:
    return one.start_s < other.end_s - 1e-9 and other.start_s < one.end_s - 1e-9


def test_parts_are_shares_again() -> None:
    for percent in range(10, 101, 10):
        assert share_of(part_of(percent / 100)) == percent / 100
    assert part_of(0.9) + part_of(0.3) == pytest.approx(1.0)


@pytest.mark.parametrize("condense", [500, 1200])
def test_shares_from_the_planner_are_those_that_were_recorded(
    data_dir: Path, condense: int
) -> None:
    """So those of the synthetic runs, whose placements were not released, can be told from it."""
    planned = read_decode_shares(
        data_dir / "muxserve" / "planner_points.json", f"chatlmsys16_c{condense}"
    )
    wanted = (f"chatlmsys_c{condense}", "muxserve")
    run = next(run for run in read_runs(data_dir) if (run.point, run.system) == wanted)
    found = {
        model.name: (model.prefill_share, model.decode_share)
        for mesh in run.meshes
        for model in mesh.models
    }
    assert len(found) == 16
    assert found == {
        model.name: process_shares(model.shape, planned[model.name, mesh.tp])
        for mesh in run.meshes
        for model in mesh.models
    }
    assert len(set(found.values())) > 3


def test_jobs_side_by_side_have_their_own_shares_and_at_most_what_is_given_out() -> None:
    _, spans = _simulated(_crowd(), exact=True)
    assert {(span.model, span.phase) for span in spans} == set(_SHARES)
    assert all(share_of(span.share) == _SHARES[span.model, span.phase] for span in spans)
    most = 0.0
    for span in spans:
        beside = [each for each in spans if each.start_s <= span.start_s < each.end_s - 1e-9]
        most = max(most, sum(share_of(each.share) for each in beside))
        assert sum(each.phase == "prefill" for each in beside) <= 1
        assert len({(each.model, each.phase) for each in beside}) == len(beside)
    assert most == pytest.approx(GIVEN_OUT)


def test_what_runs_beside_a_prefill_fits_beside_its_share() -> None:
    """0.8 + 0.4 and 0.9 + 0.3 are 1.2; 1.0 leaves nobody else a process that small."""
    _, spans = _simulated(_crowd(), exact=True)
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
    arrivals = [Arrival(0.0, "first", "small", 50, 400), Arrival(1.0, "next", "large", 50, 20)]
    _, spans = _simulated(arrivals, exact=True)
    waiting = next(span for span in spans if (span.model, span.phase) == ("large", "prefill"))
    running = next(span for span in spans if span.start_s <= 1.0 < span.end_s)
    assert running.phase == "decode"
    assert waiting.start_s == pytest.approx(running.end_s)
    held = [span for span in spans if 1.0 < span.start_s < waiting.end_s and span is not waiting]
    assert held == []


def test_other_models_prefill_while_one_waits_for_sms() -> None:
    """While a decode has 0.3, a prefill of 1.0 waits, and one of 0.9, later in turn, does not."""
    arrivals = [
        Arrival(0.0, "decodes", "middle", 50, 400),
        Arrival(1.0, "large", "large", 50, 20),
        Arrival(1.0, "again", "middle", 50, 20),
    ]
    _, spans = _simulated(arrivals, exact=True)
    running = next(span for span in spans if span.start_s <= 1.0 < span.end_s)
    prefill = next(
        span for span in spans if span.phase == "prefill" and span.start_s > running.start_s
    )
    assert (prefill.model, prefill.start_s) == ("middle", 1.0)


def test_steps_that_repeat_are_simulated_alike() -> None:
    one_by_one, _ = _simulated(_crowd(), exact=True)
    together, _ = _simulated(_crowd(), exact=False)
    assert together.num_jobs < one_by_one.num_jobs
    for column in ("first_token_s", "last_token_s"):
        np.testing.assert_allclose(
            np.sort(together.records.rows[column]), np.sort(one_by_one.records.rows[column])
        )


def test_pairs_of_jobs_run_in_every_mix() -> None:
    _, spans = _simulated(_crowd(), exact=True)
    decodes = [span for span in spans if span.phase == "decode"]
    pairs = {
        frozenset((one.model, other.model))
        for one, other in combinations(decodes, 2)
        if one.model != other.model and _run_together(one, other)
    }
    assert pairs == {
        frozenset(("small", "middle")),
        frozenset(("small", "large")),
        frozenset(("middle", "large")),
    }
