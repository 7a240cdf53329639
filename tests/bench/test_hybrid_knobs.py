"""The sweep of the targets: its systems, its trades, its picture."""

from pathlib import Path

import pytest

from bench.hybrid.knobs import additive, simulated, trades
from bench.hybrid.simulated.knobs_picture import draw
from bench.hybrid.simulated.running import Runner
from bench.hybrid.simulated.setups import TPOT_S, TTFT_S, Point, case_of
from muxcluster.sim.cases.sweep import Cache


def test_a_system_for_every_setting() -> None:
    found = {entry.name: entry.policy for entry in additive()}
    assert len(found) == 9
    assert found["additive 8+4"] == {"first_rows": 8, "more_rows": 4}


def test_targets_are_the_published_ones_divided_by_the_strictness() -> None:
    point = Point("opt-13b", "sharegpt", 5.0, 10.0, strictness=4.0)
    (demand,) = case_of(point, additive()[0], 0).problem.demands
    assert (demand.ttft_s, demand.tpot_s) == (TTFT_S / 4, TPOT_S / 4)


@pytest.mark.slow
def test_trades_are_against_fcfs_and_are_drawn_the_same_way_twice(tmp_path: Path) -> None:
    cells = simulated(Runner(Cache(tmp_path), 1, (0,)), [("opt-13b", 5.0)], 10.0, (0.5,))
    row = trades(cells)[0]
    assert row["system"] == "targets 0.5"
    fcfs, ours = cells[0].row(), cells[1].row()
    kept = ours["batch_tokens_per_s"][0] / fcfs["batch_tokens_per_s"][0]
    assert row["batch_kept"] == pytest.approx(kept, abs=1e-3)
    cut = 1.0 - ours["normalised_s"][0] / fcfs["normalised_s"][0]
    assert row["latency_cut"] == pytest.approx(cut, abs=2e-3)
    for name in ("a.svg", "b.svg"):
        draw([row], tmp_path / name)
    picture = (tmp_path / "a.svg").read_bytes()
    assert picture == (tmp_path / "b.svg").read_bytes()
    assert b"opt-13b, 5 requests/s" in picture
