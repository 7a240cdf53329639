"""BlendServe's evaluation runs from end to end; its figures against numbers by hand."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from bench.offline.blending.claims import Part, case_of, claims_of
from bench.offline.blending.picture import GRID_FILE, USE_FILE, draw_all
from bench.offline.blending.runs import Rows, untold
from bench.offline.blending.traces import Mix, trace
from bench.offline.blending.unit import BUDGET_TOKENS, KV_BYTES, RESOURCES
from bench.offline.blendserve import main
from bench.offline.rows import Row
from muxcluster.offline.blend.lengths import known_lengths
from muxcluster.offline.feed.feeder import Room

MIX = Mix(1.4, 0.05)


def test_a_tiny_evaluation_is_published_with_its_runs(tmp_path: Path) -> None:
    kept, record = tmp_path / "rows.jsonl", tmp_path / "record.json"
    arguments = ["--quick", "--requests", "300", "--grid", "0", "--rows", str(kept)]
    main([*arguments, "--json", str(record), "--plots", str(tmp_path)])
    first = json.loads(record.read_text())
    by_name = {claim["name"]: claim["value"] for claim in first["claims"]}
    dfs, blend = first["runs"]
    assert dfs["num_requests"] == blend["num_requests"] >= 300
    assert by_name["throughput_over_dfs"] == dfs["makespan_s"] / blend["makespan_s"]
    assert 0 < by_name["share_of_ideal"] < by_name["share_of_optimum"] < 1
    assert sorted(first["use"]) == ["blend", "dfs"]
    assert (tmp_path / USE_FILE).read_text().startswith("<?xml")
    assert not (tmp_path / GRID_FILE).exists()

    main([*arguments, "--json", str(record)])
    again = json.loads(record.read_text())
    assert again["runs"] == first["runs"]
    assert len(kept.read_text().splitlines()) == 2


def _rows(tmp_path: Path, part: Part, makespans: dict[str, float]) -> Rows:
    """As if every case had run, in `makespans` by order; half as fast without overlap."""
    path = tmp_path / "rows.jsonl"
    with path.open("w") as file:
        for case in part.cases():
            row: Row = {
                "case": f"{case.name}, seed 7",
                "makespan_s": makespans[case.order] * (1 if case.overlap else 2),
                "share_of_permitted": 0.9,
                "share_of_ideal": 0.5,
                "sharing_kept": 0.98,
            }
            file.write(json.dumps(row) + "\n")
    return Rows(path)


def test_claims_are_those_of_the_rows(tmp_path: Path) -> None:
    traces = Part((MIX,), 10, ("dfs", "blend", "fcfs"), ("blend",))
    rows = _rows(tmp_path, traces, {"dfs": 6.0, "blend": 5.0, "fcfs": 9.0})
    claims = claims_of(traces, Part((), 10), rows, seed=7)
    assert {claim.name: claim.value for claim in claims} == {
        "throughput_over_dfs": pytest.approx(1.2),
        "share_of_optimum": 0.9,
        "share_of_ideal": 0.5,
        "prefix_sharing_of_optimum": 0.98,
        "overlap_over_serial": pytest.approx(2.0),
    }
    with pytest.raises(KeyError):
        claims_of(traces, Part((), 10), rows, seed=8)


def test_every_mixture_is_run_in_every_order() -> None:
    part = Part((MIX, Mix(0.9, 0.05)), 10, ("dfs", "blend"), ("dfs",))
    assert len({case.name for case in part.cases()}) == 6
    assert case_of(MIX, 10, "blend") in part.cases()


def test_what_has_run_can_be_published_alone(tmp_path: Path) -> None:
    other = Mix(0.9, 0.05)
    ran = Part((MIX,), 10, ("dfs", "blend", "fcfs"), ("dfs",))
    rows = _rows(tmp_path, ran, {"dfs": 6.0, "blend": 5.0, "fcfs": 9.0})
    asked = Part((MIX, other), 10, ("dfs", "blend", "fcfs", "random"), ("dfs", "blend"))
    assert asked.done(rows, seed=7).cases() == ran.cases()
    assert asked.done(rows, seed=8).cases() == []


def test_the_grid_is_drawn_where_it_was_run(tmp_path: Path) -> None:
    use = {"bin_s": 60.0, "compute": [0.5, 0.4], "memory": [0.2, 0.3], "held": [0.9, 0.1]}
    points = [
        {"density": 1.0 + step / 10, "sharing": sharing, "over_dfs": 1.1 + step / 100}
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
