"""BlendServe's evaluation runs from end to end; its figures against numbers by hand."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from bench.offline.blending.claims import BLEND, RIVALS, Part, claims_of
from bench.offline.blending.picture import GRID_FILE, USE_FILE, draw_all
from bench.offline.blending.runs import Case, Rows, in_longest_prefix_order, untold
from bench.offline.blending.traces import TRACES, Mix, trace
from bench.offline.blending.unit import (
    BUDGET_TOKENS,
    KV_BYTES,
    RESOURCES,
    Lane,
    make_unit,
    permitted,
)
from bench.offline.blendserve import main
from bench.offline.rows import Row
from muxcluster.core.job import Phase
from muxcluster.offline.blend.lengths import known_lengths
from muxcluster.offline.choice import summary_of
from muxcluster.offline.feed.feeder import Room

MIX, OTHER = Mix(1.4, 0.05), Mix(0.9, 0.05)
LANES = (Lane.SPLIT, Lane.MIXED)


@pytest.mark.slow
def test_a_tiny_evaluation_is_published_with_its_runs(tmp_path: Path) -> None:
    kept, record = tmp_path / "rows.jsonl", tmp_path / "record.json"
    arguments = ["--quick", "--requests", "150", "--rows", str(kept)]
    main([*arguments, "--json", str(record), "--plots", str(tmp_path)])
    first = json.loads(record.read_text())
    by_name = {claim["name"]: claim["value"] for claim in first["claims"]}
    runs = first["runs"]
    assert len(runs) == (1 + len(RIVALS)) * len(Lane)
    blends = [run["makespan_s"] for run in runs if f", {BLEND}, " in run["case"]]
    rivals = [run["makespan_s"] for run in runs if f", {BLEND}, " not in run["case"]]
    assert len(blends) == len(Lane)
    assert by_name["throughput_over_best_rival"] == min(rivals) / min(blends)
    assert 0 < by_name["share_of_ideal"] < by_name["share_of_optimum"] < 1
    assert len(first["use"]) == 2
    assert first["traces"][0]["gain"] == by_name["throughput_over_best_rival"]
    assert (tmp_path / USE_FILE).read_text().startswith("<?xml")
    assert not (tmp_path / GRID_FILE).exists()

    main([*arguments, "--json", str(record)])
    again = json.loads(record.read_text())
    assert again["runs"] == first["runs"]
    assert len(kept.read_text().splitlines()) == len(runs)


def _rows(tmp_path: Path, cases: Mapping[Case, float]) -> Rows:
    """As if every case had run, in so many seconds."""
    path = tmp_path / "rows.jsonl"
    with path.open("w") as file:
        for case, makespan_s in cases.items():
            row: Row = {
                "case": f"{case.name}, seed 7",
                "makespan_s": makespan_s,
                "share_of_permitted": 4 / makespan_s,
                "share_of_ideal": 2 / makespan_s,
                "sharing_kept": 0.98,
            }
            file.write(json.dumps(row) + "\n")
    return Rows(path)


def _seconds(part: Part, seconds: Mapping[tuple[str, Lane], float]) -> dict[Case, float]:
    return {case: seconds[case.order, case.lane] for case in part.cases()}


def test_claims_are_over_the_best_rival_in_its_best_lane(tmp_path: Path) -> None:
    part = Part((MIX, OTHER), 10, ("dfs", "fcfs"), LANES)
    split, mixed = LANES
    first = {
        ("blend", split): 5.0,
        ("blend", mixed): 7.0,
        ("dfs", split): 9.0,
        ("dfs", mixed): 6.5,
        ("fcfs", split): 6.0,
        ("fcfs", mixed): 8.0,
    }
    second = first | {("blend", split): 9.0, ("fcfs", split): 20.0}
    made = _seconds(replace(part, mixes=(MIX,)), first) | _seconds(
        replace(part, mixes=(OTHER,)), second
    )
    rows = _rows(tmp_path, made)
    assert part.gains_over(("dfs", "fcfs"), rows, 7) == pytest.approx([6.0 / 5.0, 6.5 / 7.0])
    assert part.best_of(OTHER, ("dfs", "fcfs"), rows, 7) == Case(OTHER, 10, "dfs", mixed)
    claims = claims_of(part, Part((), 10), rows, seed=7)
    assert {claim.name: claim.value for claim in claims} == {
        "throughput_over_best_rival": pytest.approx((6 / 5 + 6.5 / 7) / 2),
        "throughput_over_best_rival_min": pytest.approx(6.5 / 7),
        "throughput_over_dfs_in_any_lane": pytest.approx((6.5 / 5 + 6.5 / 7) / 2),
        "share_of_optimum": pytest.approx((4 / 5 + 4 / 7) / 2),
        "share_of_ideal": pytest.approx((2 / 5 + 2 / 7) / 2),
        "prefix_sharing_of_optimum": 0.98,
        "overlap_over_mixed": pytest.approx((7 / 5 + 7 / 9) / 2),
    }
    with pytest.raises(KeyError):
        claims_of(part, Part((), 10), rows, seed=8)


def test_every_mixture_is_run_in_every_order_and_lane() -> None:
    part = Part((MIX, OTHER), 10)
    names = {case.name for case in part.cases()}
    assert len(names) == len(part.cases()) == 2 * (1 + len(RIVALS)) * len(Lane)


def test_what_has_run_can_be_published_alone(tmp_path: Path) -> None:
    ran = Part((MIX,), 10, ("dfs",), LANES)
    rows = _rows(tmp_path, dict.fromkeys(ran.cases(), 5.0))
    asked = replace(ran, mixes=(MIX, OTHER))
    assert asked.done(rows, seed=7).cases() == ran.cases()
    assert asked.done(rows, seed=8).cases() == []


def test_units_are_those_that_ship() -> None:
    split, mixed, small = (make_unit(lane).spec for lane in Lane)
    assert (split.scheduler.lane, mixed.scheduler.lane) == ("adbs", "mixed")
    assert len(split.workers) == 2
    assert {Phase.PREFILL, Phase.DECODE} <= {p for each in split.workers for p in each.phases}
    assert small.scheduler.token_budget < mixed.scheduler.token_budget == BUDGET_TOKENS


@pytest.mark.parametrize("mix", TRACES[:2])
def test_what_is_permitted_is_no_more_than_any_lane_permits(mix: Mix) -> None:
    found = permitted(summary_of(trace(mix, 2000, RESOURCES, KV_BYTES, seed=0).with_tree()))
    assert found.seconds <= min(found.split_s, found.mixed_s) + 1e-6
    assert max(found.split_s, found.mixed_s) < found.serial_s


def test_longest_prefix_first_keeps_every_request_and_its_length() -> None:
    job = trace(TRACES[0], 300, RESOURCES, KV_BYTES, seed=0)
    found = in_longest_prefix_order(job, job.with_tree())
    assert sorted(zip(found.prompts.lengths, found.output_tokens, strict=True)) == sorted(
        zip(job.prompts.lengths, job.output_tokens, strict=True)
    )
    assert found.with_tree().tree.saved_tokens == job.with_tree().tree.saved_tokens


def test_the_grid_is_drawn_where_it_was_run(tmp_path: Path) -> None:
    use = {"bin_s": 60.0, "compute": [0.5, 0.4], "memory": [0.2, 0.3], "held": [0.9, 0.1]}
    points = [
        {"density": 1.0 + step / 10, "sharing": sharing, "gain": 1.1 + step / 100}
        for step in range(3)
        for sharing in (0.05, 0.45)
    ]
    draw_all({"grid": points, "use": {"dfs": use, "blend": use}}, tmp_path)
    text = (tmp_path / GRID_FILE).read_text()
    assert "5% shared" in text
    assert "45% shared" in text


def test_plans_that_sample_are_not_told_lengths() -> None:
    """Those of the same prompts with other outputs begin alike."""
    whole = trace(MIX, 300, RESOURCES, KV_BYTES, seed=0).with_tree()
    tripled = replace(whole, outputs=known_lengths(3 * whole.outputs.mean))
    room = Room(0.0, KV_BYTES, 0.0, BUDGET_TOKENS)
    first, second = (untold(job, "blend").take(room) for job in (whole, tripled))
    assert first == second
    assert len(first) > 10
