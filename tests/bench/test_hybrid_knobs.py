"""The sweep of the hybrid packing's knobs: its systems, its trades, its picture."""

from pathlib import Path

import pytest

from bench.hybrid.knobs import entries, trades
from bench.hybrid.simulated.knobs_picture import draw
from bench.hybrid.simulated.running import Runner
from bench.hybrid.simulated.setups import Point
from muxcluster.sim.cases.sweep import Cache


def test_a_system_for_every_setting() -> None:
    found = {entry.name: entry.policy for entry in entries((0.5, 2.0))}
    assert len(found) == 1 + 2 + 9
    assert found["predicted 0.5"] == {"batch_stretch": 0.5}
    assert found["additive 8+4"] == {"first_rows": 8, "more_rows": 4}


def test_trades_are_against_fcfs_and_are_drawn_the_same_way_twice(tmp_path: Path) -> None:
    systems = [each for each in entries((2.0,)) if each.name in ("fcfs", "predicted 2")]
    cells = Runner(Cache(tmp_path), 1, (0,)).cells(
        [Point("opt-13b", "sharegpt", 5.0, 10.0)], systems
    )
    (row,) = trades(cells)
    fcfs, ours = (cell.row() for cell in cells)
    kept = ours["batch_tokens_per_s"][0] / fcfs["batch_tokens_per_s"][0]
    assert row["batch_kept"] == pytest.approx(kept, abs=1e-3)
    cut = 1.0 - ours["normalised_s"][0] / fcfs["normalised_s"][0]
    assert row["latency_cut"] == pytest.approx(cut, abs=2e-3)
    for name in ("a.svg", "b.svg"):
        draw([row], tmp_path / name)
    picture = (tmp_path / "a.svg").read_bytes()
    assert picture == (tmp_path / "b.svg").read_bytes()
    assert b"opt-13b, 5 requests/s" in picture
