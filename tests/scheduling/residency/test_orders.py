"""An operator parks, holds, wakes and pins models: stories, then random runs."""

import gc
import random
from types import FunctionType, ModuleType

import numpy as np
import pytest

from muxcluster.core.errors import ModelNotFound, MoveRefused
from muxcluster.core.events import Finished, FinishReason
from muxcluster.core.request import Slo
from muxcluster.core.residency import MoveKind, Residency, WeightOrder
from muxcluster.scheduling.residency.weights import Weights
from tests.scheduling.residency.test_random_moves import (
    check_ends,
    random_request,
    random_spec,
    random_step,
)
from tests.scheduling.residency.test_weight_moves import end_of, rig_of, stats, two
from tests.scheduling.residency.world import WAKE_S, TightRig, weighed
from tests.scheduling.rig import Rig, expected_output, request, unit_spec

PARK, HOLD, WAKE = WeightOrder.PARK, WeightOrder.HOLD, WeightOrder.WAKE
PIN, UNPIN, EXPECT = WeightOrder.PIN, WeightOrder.UNPIN, WeightOrder.EXPECT
RUNS = 40


def test_a_parked_model_stays_away_though_there_is_room_until_its_next_request() -> None:
    rig = rig_of(weighed("a", rate_per_s=2.0), weighed("b", rate_per_s=1.0), room=2)
    rig.order("a", PARK)
    rig.settle()
    assert rig.resident == {"b"}
    assert (stats(rig, "a").weights, stats(rig, "a").order) == ("parked", "park")
    rig.add(request("1", "a"))
    rig.run()
    assert rig.resident == {"a", "b"}
    assert stats(rig, "a").order == ""
    rig.check_outputs([request("1", "a")])


def test_a_held_model_wakes_for_no_request_before_it_is_woken() -> None:
    rig = two(room=2)
    rig.order("a", HOLD)
    rig.add(request("1", "a"), request("2", "b"))
    rig.settle()
    assert rig.resident == {"b"} and set(rig.ends) == {"2"}
    assert stats(rig, "a").order == "hold"
    rig.order("a", EXPECT)
    rig.settle()
    assert rig.resident == {"b"}
    rig.order("a", WAKE)
    rig.run()
    assert rig.resident == {"a", "b"}
    assert end_of(rig, "1").waking_s > 0
    rig.check_outputs([request("1", "a"), request("2", "b")])


def test_a_model_that_is_parked_by_hand_lets_its_requests_end_first() -> None:
    rig = two()
    rig.add(request("1", "a", num_output=4))
    rig.step()
    rig.order("a", PARK)
    rig.add(request("2", "a"))
    rig.run()
    assert end_of(rig, "1").num_preemptions == 0
    assert rig.end_s["1"] <= rig.moves[0][0]
    assert rig.kinds("a") == [MoveKind.PARK, MoveKind.WAKE]  # for the second one
    rig.check_outputs([request("1", "a", num_output=4), request("2", "a")])


def test_a_long_request_is_interrupted_and_goes_on_after_the_hold() -> None:
    rig = two(max_model_len=200)
    long = request("1", "a", num_output=150)
    rig.add(long)
    rig.step()
    rig.order("a", HOLD)
    rig.settle()
    assert rig.resident == {"b"} and "1" not in rig.ends  # b, as there is room now
    assert WAKE_S / 2 <= rig.moves[0][0] - 100.0 < 1.0  # its turn to drain first
    rig.order("a", WAKE)
    rig.run()
    assert end_of(rig, "1").num_preemptions == 1
    assert rig.tokens["1"] == expected_output(long, 200)


def test_a_model_wakes_without_a_request() -> None:
    rig = two()
    rig.order("b", WAKE)
    assert stats(rig, "b").order == "wake"
    rig.settle()
    assert rig.resident == {"b"}
    assert stats(rig, "b").order == ""


def test_an_ordered_wake_is_due_as_a_request_would_be() -> None:
    rig = rig_of(
        weighed("a", rate_per_s=9.0),
        weighed("b", slo=Slo(5.0, 0.2)),
        weighed("c", slo=Slo(0.5, 0.2)),
        room=1,
    )
    rig.order("b", WAKE)
    rig.add(request("1", "c"))
    rig.settle()
    assert [m.model for _, m in rig.moves if m.kind is MoveKind.WAKE] == ["c", "b"]


def test_a_wake_that_fails_by_order_is_tried_again() -> None:
    rig = two()
    rig.order("b", WAKE)
    rig.launch()
    rig.end_move()
    rig.launch()
    rig.end_move(fails=True)
    rig.settle()
    assert rig.resident == {"b"}


def test_a_wake_ends_a_park_that_is_under_way() -> None:
    rig = two(max_model_len=200)
    rig.add(request("1", "a", num_output=30))
    rig.step()
    rig.order("a", PARK)
    rig.launch()
    rig.order("a", WAKE)
    rig.run()
    assert not rig.moves


def test_a_pinned_model_wakes_and_is_never_parked_until_it_is_unpinned() -> None:
    rig = rig_of(*(weighed(name) for name in "abcd"), room=2)
    rig.order("d", PIN)
    rig.settle()
    assert "d" in rig.resident
    for index, name in enumerate("abcabc"):
        rig.add(request(str(index), name))
        rig.run()
    assert rig.kinds("d") == [MoveKind.WAKE]
    with pytest.raises(MoveRefused, match="d is pinned: unpin it first"):
        rig.order("d", HOLD)
    rig.order("d", UNPIN)
    rig.order("d", PARK)
    rig.settle()
    assert "d" not in rig.resident


def test_a_pinned_model_that_is_lost_wakes_by_itself() -> None:
    rig = rig_of(*(weighed(name, residency=Residency.ON_DEMAND) for name in "abc"), room=2)
    rig.order("a", PIN)
    rig.settle()
    rig.lose("a")
    rig.settle()
    assert "a" in rig.resident


def test_a_pin_that_leaves_another_model_no_room_is_refused() -> None:
    rig = rig_of(weighed("a", 2), weighed("b", 3), weighed("c", 4), room=5)
    with pytest.raises(MoveRefused, match="pinning a would leave 3 bytes .*, and c takes 4"):
        rig.order("a", PIN)
    rig.add(request("1", "c"))
    rig.run()
    assert "1" in rig.ends


def test_orders_that_cannot_be_followed_are_refused() -> None:
    rig = rig_of(weighed("a", residency=Residency.ALWAYS), weighed("b"), room=2)
    for order in (PARK, HOLD):
        with pytest.raises(MoveRefused, match="a always stays resident"):
            rig.order("a", order)
    with pytest.raises(ModelNotFound):
        rig.order("nobody", WAKE)
    with pytest.raises(MoveRefused, match="this unit parks nothing"):
        rig_of(weighed("a"), weighed("b"), room=1, wakes="static").order("b", WAKE)
    plain = Rig(unit_spec())
    for order in WeightOrder:
        with pytest.raises(MoveRefused, match="all weights of its unit stay resident"):
            plain.scheduler.request_move("a", order, plain.now)


def test_orders_are_followed_where_one_model_is_resident_at_a_time() -> None:
    rig = rig_of(*(weighed(name, residency=Residency.ON_DEMAND) for name in "ab"), room=1)
    swap = rig_of(
        *(weighed(name, residency=Residency.ON_DEMAND) for name in "ab"), room=1, wakes="swap"
    )
    for each in (rig, swap):
        each.order("b", WAKE)
        each.settle()
        assert each.resident == {"b"}
        each.order("b", HOLD)
        each.settle()
        assert each.resident == set()


# What a sleeper takes


def arrays_of(owner: object) -> int:
    """Bytes of all arrays that can be reached from an object, each once."""
    seen: set[int] = set()
    found, left = 0, [owner]
    while left:
        each = left.pop()
        if id(each) in seen or isinstance(each, (type, ModuleType)):
            continue
        seen.add(id(each))
        if isinstance(each, np.ndarray):
            found += each.nbytes if each.base is None else 0
            left.append(each.base)
        left += [] if isinstance(each, FunctionType) else gc.get_referents(each)
    return found


def test_what_a_parked_model_takes_is_told_to_the_byte() -> None:
    models = [weighed(name, max_seqs=5 + place) for place, name in enumerate("abc")]
    few, more = rig_of(*models[:2], room=1), rig_of(*models, room=1)
    told = stats(more, "c").parked_bytes
    assert stats(more, "c").weights == "parked"
    assert told == arrays_of(more.scheduler) - arrays_of(few.scheduler) > 0


# A model whose wakes fail for good


def failing_wake(rig: TightRig, request_id: str) -> None:
    """A request to b, whose wake cannot work."""
    rig.add(request(request_id, "b"))
    for _ in range(10):
        rig.launch()
        assert rig.moving is not None
        if rig.moving[1].model == "b":
            rig.end_move(fails=True, is_final=True)
            return
        rig.end_move()
    raise AssertionError("it is not woken")


def test_a_model_that_cannot_wake_is_tried_again_after_a_growing_pause() -> None:
    rig = two()
    failing_wake(rig, "1")
    rig.now += 29.0
    rig.add(request("2", "b"))
    assert end_of(rig, "2").code == "model_failed"
    rig.now += 1.1
    failing_wake(rig, "3")
    rig.now += 59.0
    rig.add(request("4", "b"))
    assert end_of(rig, "4").code == "model_failed"
    rig.now += 1.1
    rig.add(request("5", "b"))
    rig.run()
    assert end_of(rig, "5").reason is FinishReason.LENGTH
    failing = rig_of(weighed("a"), weighed("b"), room=1)
    failing_wake(failing, "1")
    failing.order("b", EXPECT)
    assert stats(failing, "b").weights == "cold"
    failing.order("b", WAKE)  # the operator's word ends the pause
    failing.settle()
    assert failing.resident == {"b"}


# Random runs


def order_at_random(rng: random.Random, rig: TightRig) -> None:
    name, order = rng.choice(rig.spec.models).name, rng.choice(tuple(WeightOrder))
    try:
        rig.order(name, order)
    except MoveRefused:
        assert order in (PARK, HOLD, PIN)


def random_run(seed: int) -> TightRig:
    """Orders amid arrivals, aborts, failures and losses; holds end when nothing else comes."""
    rng = random.Random(f"orders {seed}")
    rig = TightRig(random_spec(rng), seed, failing=rng.choice((0.0, 0.0, 0.3)))
    num_models = len(rig.spec.models)
    asked = [random_request(rng, f"{seed}-{i}", num_models) for i in range(rng.randint(1, 9))]
    coming, num_steps = list(asked), 0
    while coming or rig.num_open:
        num_steps += 1
        assert num_steps < 5000, f"{rig.num_open} requests never end"
        if rng.random() < 0.1 and num_steps < 200:
            order_at_random(rng, rig)
        elif coming and rng.random() < 0.3:
            rig.add(coming.pop())
        elif not coming and num_steps >= 200:
            for name in [n for n, order in rig.orders.items() if order is HOLD]:
                rig.order(name, WAKE)
            random_step(rng, rig, asked)
        else:
            random_step(rng, rig, asked)
    rig.settle()
    rig.check_empty()
    check_ends(rig, asked)
    return rig


def test_every_request_ends_once_whatever_an_operator_orders() -> None:
    rigs = [random_run(seed) for seed in range(RUNS)]
    last = {order for rig in rigs for order in rig.orders.values()}
    assert {PARK, PIN, WAKE} <= last
    assert all(isinstance(end, Finished) for rig in rigs for end in rig.ends.values())
    assert any(end.waking_s > 0 for rig in rigs for end in rig.ends.values())


def test_a_scheduler_that_forgets_a_hold_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Weights.expect

    def forgetful(self, live, now: float) -> None:
        self.order = None
        real(self, live, now)

    monkeypatch.setattr(Weights, "expect", forgetful)
    with pytest.raises(AssertionError, match="is held|is pinned|stayed for"):
        for seed in range(RUNS):
            random_run(seed)
