"""The bench of BROS's evaluation: lengths, cases, cuts and claims against numbers by hand."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench.hybrid.bros import Slice
from bench.hybrid.picture import draw
from bench.hybrid.simulated.claims import (
    all_claims,
    alone_claims,
    apart_claims,
    bearable,
    changes,
    claims_of,
    work_claims,
)
from bench.hybrid.simulated.lengths import LONGEST, SHORTEST, Even, Fitted
from bench.hybrid.simulated.running import Cell, Runner, batch_tokens_per_s, normalised_s
from bench.hybrid.simulated.setups import APART, ENTRIES, LENGTHS, OURS, SETUPS, Point, case_of
from muxcluster.placement.hardware import GIB
from muxcluster.sim.cases.sweep import Cache
from muxcluster.sim.report.report import (
    BatchReport,
    CaseReport,
    ClassesReport,
    InteractiveReport,
    SpreadReport,
)

POINT = Point("opt-13b", "sharegpt", 5.0, 10.0)


def test_fitted_lengths_have_the_mean_and_deviation_asked_for() -> None:
    drawn = Fitted(300.0, 90.0).draw(np.random.default_rng(0), 200_000)
    assert drawn.mean() == pytest.approx(300.0, rel=0.005)
    assert drawn.std() == pytest.approx(90.0, rel=0.01)


@pytest.mark.parametrize("name", LENGTHS)
def test_published_lengths_keep_the_limits_and_nearly_the_mean(name: str) -> None:
    """The cut takes a little from the longest, and the shortest are made longer."""
    means = {"sharegpt": (222.76, 234.51), "lmsys": (90.50, 237.04)}[name]
    for drawn, mean in zip(
        LENGTHS[name].draw(np.random.default_rng(0), 100_000), means, strict=True
    ):
        assert (drawn.min(), drawn.max()) == (SHORTEST, LONGEST)
        assert drawn.mean() == pytest.approx(mean, rel=0.03)


def test_even_lengths_are_even() -> None:
    drawn = Even(32, 128).draw(np.random.default_rng(0), 97_000)
    counts = np.bincount(drawn)
    assert (counts[:32] == 0).all()
    assert len(counts) == 129
    assert counts[32:].min() > 850
    assert counts[32:].max() < 1150


def test_lengths_that_mean_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="above 0"):
        Fitted(0.0, 1.0)
    with pytest.raises(ValueError, match="least"):
        Even(9, 8)


@pytest.mark.parametrize("setup", SETUPS)
def test_pools_are_what_the_weights_leave(setup: str) -> None:
    """By hand: 90 % of the GPUs less weights in 16 bits, contexts, activations and tables."""
    billions = {"opt-13b": 12.9, "opt-30b": 30.0, "llama-3-70b": 70.6}[setup]
    case = case_of(Point(setup, "sharegpt", 5.0, 10.0), ENTRIES[0], 0)
    (node,), (unit,) = case.problem.nodes, case.plan.units
    assert unit.tp == node.num_gpus
    usable = 0.9 * node.num_gpus * node.gpu.memory_bytes
    rest = usable - 2e9 * billions - 1.5 * GIB * node.num_gpus
    assert unit.kv_blocks * 2 * 128 * 16 * 2 == pytest.approx(rest, rel=0.08)


def test_systems_get_the_same_load() -> None:
    """Arrivals and waves of a point depend on the seed alone."""
    cases = [case_of(POINT, entry, 3) for entry in ENTRIES]
    loads = [list(case.load.arrivals(case.seed, case.duration_s)) for case in cases]
    assert all(load == loads[0] for load in loads)
    assert len({case.waves for case in cases}) == 1
    assert len({(case.system.name, case.problem.policy) for case in cases}) == len(ENTRIES)


def test_points_with_and_without_batch_load() -> None:
    asked = Slice(["opt-13b", "opt-30b"], ["sharegpt", "lmsys"], [1.0, 2.0, 3.0], 60.0, 99, ENTRIES)
    assert len(asked.loaded("sharegpt")) == len(asked.loaded("lmsys")) == 2 * 3
    (waves,) = case_of(asked.loaded("lmsys")[0], ENTRIES[0], 0).waves
    assert (waves.size, waves.end_s) == (99, 60.0)
    assert [(p.setup, p.lengths) for p in asked.alone()[::3]] == [
        ("opt-13b", "sharegpt"),
        ("opt-30b", "sharegpt"),
    ]
    assert case_of(asked.alone()[0], ENTRIES[0], 0).waves == ()


def cell(rate: float, system: str, *, latency_s: tuple[float, ...], batch: float) -> Cell:
    """As many seeds as latencies; nothing but what is looked at."""

    def report(mean: float) -> CaseReport:
        interactive = InteractiveReport.model_construct(
            requests_per_s=2.0,
            normalised=SpreadReport.model_construct(mean=mean),
            ttft_attainment=0.5,
            tpot_attainment=0.25,
        )
        classes = ClassesReport.model_construct(
            interactive=interactive, batch=BatchReport.model_construct(tokens_per_s=batch)
        )
        return CaseReport.model_construct(classes=classes)

    point = Point("opt-13b", "sharegpt", rate, 60.0)
    return Cell(point, system, tuple(map(report, latency_s)))


CELLS = (
    cell(1.0, "fcfs", latency_s=(0.3, 0.5), batch=1000.0),
    cell(1.0, "round-robin", latency_s=(0.2, 0.2), batch=800.0),
    cell(1.0, OURS, latency_s=(0.1, 0.1), batch=900.0),
    cell(2.0, "fcfs", latency_s=(0.8, 0.8), batch=500.0),
    cell(2.0, "round-robin", latency_s=(0.1, 0.3), batch=300.0),
    cell(2.0, OURS, latency_s=(0.1, 0.3), batch=480.0),
)


def test_changes_are_of_the_means_over_seeds() -> None:
    found = changes(CELLS, "fcfs", normalised_s)
    assert list(found.values()) == pytest.approx([0.75, 0.75])
    assert [point.rate_per_s for point in found] == [1.0, 2.0]
    lost = changes(CELLS, "round-robin", batch_tokens_per_s)
    assert list(lost.values()) == pytest.approx([-0.125, -0.6])


def test_claims_are_means_over_points() -> None:
    values = {claim.name: claim.value for claim in claims_of(CELLS)}
    assert values == pytest.approx(
        {
            "normalised_latency_cut_vs_fcfs": 0.75,
            "normalised_latency_cut_vs_round_robin": 0.25,
            "batch_throughput_loss_vs_fcfs": (0.1 + 0.04) / 2,
            "batch_throughput_loss_vs_round_robin": (-0.125 - 0.6) / 2,
            "ttft_attainment": 0.5,
            "tpot_attainment": 0.25,
        }
    )


def test_points_that_interactive_requests_alone_overload_are_left_out() -> None:
    """Alone, half of the requests at 2/s are late, so only 1/s can be borne."""

    def alone(rate: float, attained: float) -> Cell:
        found = cell(rate, "fcfs", latency_s=(0.1,), batch=0.0)
        (report,) = found.classes()
        mine = report.interactive.model_copy(update={"ttft_attainment": attained})
        classes = report.model_copy(update={"interactive": mine})
        point = replace(found.point, has_batch=False)
        return Cell(point, "fcfs", (CaseReport.model_construct(classes=classes),))

    found = bearable([*CELLS, alone(1.0, 0.95), alone(2.0, 0.5)])
    assert {each.point.rate_per_s for each in found} == {1.0}
    assert len(found) == 4
    assert bearable(CELLS) == []


@pytest.mark.slow
def test_a_short_run_gives_rows_claims_and_the_same_picture_twice(tmp_path: Path) -> None:
    points = [POINT, Point("opt-13b", "sharegpt", 5.0, 10.0, has_batch=False)]
    cells = Runner(Cache(tmp_path), 1, (0, 1)).cells(points, ENTRIES)
    assert len(cells) == 2 * len(ENTRIES)
    rows = [each.row() for each in cells]
    assert all((row["batch_tokens_per_s"][0] > 0) == row["batch"] for row in rows)
    assert all(row["interactive_per_s"][0] > 1 for row in rows if not row["batch"])
    assert len(claims_of(cells)) == 6
    pictures = []
    for name in ("a.svg", "b.svg"):
        draw(rows, tmp_path / name)
        pictures.append((tmp_path / name).read_bytes())
    assert pictures[0] == pictures[1]
    assert all(entry.name.encode() in pictures[0] for entry in ENTRIES)


def with_times(rate: float, system: str, ttft_s: float, tpot_s: float) -> Cell:
    found = cell(rate, system, latency_s=(0.1,), batch=1.0)
    (report,) = found.classes()
    times = {
        "ttft": SpreadReport.model_construct(mean=ttft_s),
        "tpot": SpreadReport.model_construct(mean=tpot_s),
    }
    mine = report.interactive.model_copy(update=times)
    report = report.model_copy(update={"interactive": mine})
    return Cell(found.point, system, (CaseReport.model_construct(classes=report),))


def test_blocks_apart_are_compared_at_the_highest_rate() -> None:
    cells = [
        with_times(rate, system, scale * ttft_s, scale * 0.1)
        for rate, scale in ((5.0, 1.0), (10.0, 3.0), (7.5, 2.0))
        for system, ttft_s in ((OURS, 0.2), (APART, 0.5 * scale))
    ]
    assert {claim.name: claim.value for claim in apart_claims(cells)} == pytest.approx(
        {"apart_ttft_ratio": 7.5, "apart_tpot_ratio": 1.0}
    )
    assert apart_claims(CELLS) == []


def test_interactive_requests_alone_are_compared_with_fcfs() -> None:
    """Latencies 0.4 and 0.8 fall to 0.1 and 0.4; of 10 requests/s, 11 and 14 are served."""

    def alone(rate: float, system: str, latency_s: float, served: float) -> Cell:
        found = cell(rate, system, latency_s=(latency_s,), batch=0.0)
        (report,) = found.classes()
        mine = report.interactive.model_copy(update={"requests_per_s": served})
        classes = report.model_copy(update={"interactive": mine})
        point = replace(found.point, has_batch=False)
        return Cell(point, system, (CaseReport.model_construct(classes=classes),))

    cells = [
        alone(1.0, "fcfs", 0.4, 10.0),
        alone(1.0, OURS, 0.1, 11.0),
        alone(2.0, "fcfs", 0.8, 10.0),
        alone(2.0, OURS, 0.4, 14.0),
    ]
    assert {claim.name: claim.value for claim in alone_claims(cells)} == pytest.approx(
        {"alone_latency_cut_vs_fcfs": 0.625, "alone_throughput_ratio_vs_fcfs": 1.25}
    )
    assert alone_claims(CELLS) == []


def test_other_lengths_have_claims_of_their_own() -> None:
    others = [replace(each, point=replace(each.point, lengths="lmsys")) for each in CELLS]
    claims = {claim.name: claim for claim in all_claims([*CELLS, *others], "sharegpt")}
    assert len(claims) == 14
    assert claims["batch_throughput_loss_vs_fcfs_lmsys"].value == pytest.approx(0.07)
    assert claims["batch_throughput_loss_vs_fcfs_lmsys"].baseline == 0.177
    assert claims["batch_throughput_loss_vs_fcfs"].baseline == 0.113


def test_work_done_counts_both_classes() -> None:
    """Tokens of 2 requests/s, 457.27 each, beside 1000 and 900, then 500 and 480 of batch."""
    served = 2 * (222.76 + 234.51)
    (claim,) = work_claims(CELLS)
    wanted = ((900 + served) / (1000 + served) + (480 + served) / (500 + served)) / 2
    assert claim.value == pytest.approx(wanted)
