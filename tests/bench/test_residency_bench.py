"""What bench/residency.py makes of its measurements; the slow run of it is in test_quick.py."""

import queue
import threading

import numpy as np
import pytest

from bench.online.parked import Load, Wakes, trace_of
from bench.online.sleepers import ClosedLoop, Pace, Sleepers
from bench.planning.parked import Outcome
from bench.planning.parking_rivals import Foreseen, SameGpus
from bench.residency import Measured
from muxcluster.core.events import Finished, FinishReason, TokenDelta
from muxcluster.core.request import Request

WAKES = Wakes(800, 1000, pack_s=(0.9, 0.8, 0.7), copy_s=(0.5,), wake_s=(2.0, 1.0, 2.5))


def row(system: str, in_time: float, p99_s: float = 1.0, lost: int = 0) -> dict:
    return {"system": system, "in_time": in_time, "ttft_p99_s": p99_s, "lost": lost}


def claims(rows: list[dict], killed_lost: int = 0) -> dict[str, float]:
    pairs = [(Pace(100.0, 10.0), Pace(99.0, 11.0))] * 3
    sleepers = Sleepers(pairs, {"c": 2**20, "d": 3 * 2**20}, 2.0**19)
    killed = row("ours", 1.0, lost=killed_lost)
    found = Measured(WAKES, rows, row("processes", 0.3), killed, sleepers).claims()
    return {claim.name: claim.value for claim in found}


def test_a_wake_is_held_against_packing_the_same_number_of_bytes() -> None:
    assert WAKES.over_possible() == pytest.approx((0.8 / 800) / (2.0 / 1000))
    assert WAKES.over_copy() == pytest.approx(0.25)


def test_the_systems_are_compared_where_swap_begins_to_fail() -> None:
    rows = [row("ours", 1.0), row("swap", 0.95), row("ours", 0.9, 2.0), row("swap", 0.3, 8.0)]
    rows += [row("ours", 0.5), row("swap", 0.01)]
    found = claims(rows)
    assert found["engine_in_time_over_swap"] == 3.0
    assert found["engine_p99_cut_over_swap"] == 4.0
    assert found["engine_in_time_over_processes"] == 3.0
    assert claims(rows[:2])["engine_in_time_over_swap"] == pytest.approx(1.053)


def test_what_ours_loses_is_counted_in_all_its_runs() -> None:
    rows = [row("ours", 1.0, lost=2), row("swap", 0.5, lost=9)]
    assert claims(rows, killed_lost=3)["requests_lost"] == 5


def test_ratios_of_pairs_are_medians() -> None:
    found = claims([row("ours", 1.0), row("swap", 1.0)])
    assert found["throughput_beside_sleepers"] == 0.99
    assert found["tokens_per_cpu_s_beside_sleepers"] == 1.1
    assert (found["sleeper_told_mib"], found["sleeper_owner_mib"]) == (2.0, 0.5)


def outcome(in_time: float, ahead: int = 0, used: int = 0) -> Outcome:
    return Outcome("any", 8, "apart", in_time, 30, 0.1, 0.1, ahead, used)


def test_on_the_same_gpus_they_are_compared_where_swap_begins_to_fail() -> None:
    shares = ((10.0, 1.0, 0.98), (20.0, 0.995, 0.8), (40.0, 0.985, 0.4), (80.0, 0.6, 0.2))
    same = SameGpus(8, [(load, outcome(ours), outcome(swap)) for load, ours, swap in shares])
    found = {claim.name: claim.value for claim in same.claims()}
    assert found["in_time_over_swap"] == pytest.approx(0.995 / 0.8, abs=1e-4)
    assert found["late_of_swap_over_ours"] == pytest.approx(0.2 / 0.005, rel=1e-3)
    assert found["most_in_time_over_swap"] == 3.0
    # ours passes 99 % half way from 20 to 40, swap half way from 0 (all in time) to 10
    assert found["load_over_swap"] == pytest.approx(30.0 / 5.0)


def test_foresight_is_judged_by_late_requests_and_by_wakes_that_were_used() -> None:
    rows = {"": (outcome(0.98), outcome(0.99, 10, 4)), "_x": (outcome(0.9), outcome(0.95))}
    found = {claim.name: claim.value for claim in Foreseen(10.0, rows).claims()}
    assert found["late_cut_by_foresight"] == found["late_cut_by_foresight_x"] == 2.0
    assert (found["foresight_hit_rate"], found["foresight_hit_rate_x"]) == (0.4, 0.0)


def test_the_first_name_is_asked_most_and_arrivals_have_the_rate() -> None:
    asks = trace_of(["a", "b", "c", "d"], 50.0, 40.0, 1)
    assert len(asks) == pytest.approx(2000, rel=0.1)
    counts = [sum(each.model == name for each in asks) for name in "abcd"]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] / counts[1] == pytest.approx(2.0, rel=0.2)
    assert all(np.diff([each.at_s for each in asks]) >= 0)


def test_a_request_without_a_whole_answer_is_lost() -> None:
    asks = trace_of(["a"], 1.0, 3.0, 0)[:2]
    load = Load(asks, sent_s={each.request_id: 0.0 for each in asks})
    whole, cut = (each.request_id for each in asks)
    end = Finished(whole, FinishReason.LENGTH)
    load.hear({whole: TokenDelta(tuple(range(8)), finished=end)})
    load.hear({cut: TokenDelta((1,), finished=Finished(cut, FinishReason.ERROR))})
    assert load.result()["lost"] == 1
    with pytest.raises(AssertionError, match="ended twice"):
        load.hear({whole: TokenDelta(finished=end)})


class EagerUnit:
    """Answers each request from a thread of its own, a token at a time."""

    def __init__(self) -> None:
        self.loop = ClosedLoop(["a", "b"], 3)
        self.asked: queue.Queue[str] = queue.Queue()
        self.names: list[str] = []
        threading.Thread(target=self._answer, daemon=True).start()

    def submit(self, request: Request) -> None:
        self.names.append(request.request_id)
        self.asked.put(request.request_id)

    def _answer(self) -> None:
        while True:
            name = self.asked.get()
            self.loop.hear({name: TokenDelta((1,))})
            self.loop.hear({name: TokenDelta((2,), finished=Finished(name, FinishReason.LENGTH))})


def test_both_sides_of_a_pair_do_the_same_work() -> None:
    unit = EagerUnit()
    for count in (1, 2):
        pace = unit.loop.run(unit, 40)  # type: ignore[arg-type]
        assert pace.per_s > 0
        assert len(unit.names) == len(set(unit.names)) == 40 * count
    assert {name.split("/")[0] for name in unit.names} == {"a", "b"}
