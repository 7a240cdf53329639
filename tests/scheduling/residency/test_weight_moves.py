"""What wakes and parks in small stories, each with one reason."""

import pytest

from muxcluster.core.events import Finished, FinishReason
from muxcluster.core.request import ServiceClass, Slo
from muxcluster.core.residency import MoveKind, Residency
from muxcluster.core.served import ModelStats
from muxcluster.scheduling.residency.moves import resident_at_start
from tests.scheduling.residency.world import (
    WAKE_S,
    TightRig,
    run_to_a_wake,
    tight_spec,
    weighed,
)
from tests.scheduling.rig import request, unit_spec

ON_DEMAND = Residency.ON_DEMAND
BATCH = ServiceClass.BATCH


def rig_of(*models, room: int, **policy) -> TightRig:
    return TightRig(tight_spec(models, room, **policy))


def two(room: int = 1, **changes) -> TightRig:
    """Models a (resident first) and b, with room for one of them."""
    return rig_of(weighed("a", rate_per_s=2.0, **changes), weighed("b", **changes), room=room)


def stats(rig: TightRig, name: str) -> ModelStats:
    found = rig.scheduler.stats(rig.now, "unit").models
    return next(each for each in found if each.name == name)


def end_of(rig: TightRig, name: str) -> Finished:
    end = rig.ends[name]
    assert isinstance(end, Finished)
    return end


def test_at_the_start_those_that_always_are_come_first_then_by_rate_as_they_fit() -> None:
    models = [
        weighed("rare", 2, rate_per_s=0.1),
        weighed("big", 5, rate_per_s=9.0),
        weighed("often", 2, rate_per_s=5.0),
        weighed("asked", 1, residency=ON_DEMAND, rate_per_s=7.0),
        weighed("core", 3, residency=Residency.ALWAYS, rate_per_s=0.0),
    ]
    assert resident_at_start(tight_spec(models, 7)) == ("core", "often", "rare")
    assert resident_at_start(unit_spec(models)) == tuple(model.name for model in models)


@pytest.mark.parametrize(
    ("models", "room", "message"),
    [
        ([weighed("a", 5)], 4, "'a' takes 5 bytes while it is resident, and there are 4"),
        ([weighed("a", 3), weighed("b", 2, residency=Residency.ALWAYS)], 4, "there are 2"),
        ([weighed(n, 3, residency=Residency.ALWAYS) for n in "ab"], 4, "take 6 bytes of 4"),
        ([weighed("a", 0)], 4, "nothing says how many resident_bytes 'a' has"),
    ],
)
def test_a_model_without_room_is_refused(models, room: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rig_of(*models, room=room)


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown policy of wakes 'lru'"):
        rig_of(weighed("a"), room=1, wakes="lru")


def test_a_request_wakes_its_model_and_says_how_long_that_took() -> None:
    rig = two()
    rig.add(request("1", "b"))
    rig.run()
    assert [(move.model, move.kind) for _, move in rig.moves] == [
        ("a", MoveKind.PARK),
        ("b", MoveKind.WAKE),
    ]
    rig.check_outputs([request("1", "b")])
    waking_s = end_of(rig, "1").waking_s
    assert 0.8 * WAKE_S < waking_s <= end_of(rig, "1").queue_s
    found = stats(rig, "b")
    assert (found.weights, found.num_wakes, found.num_parks) == ("resident", 1, 0)
    assert 0 < found.waking_s < waking_s  # the park came before
    assert (stats(rig, "a").weights, stats(rig, "a").num_parks) == ("parked", 1)


def test_a_request_for_a_resident_model_did_not_wait_for_weights() -> None:
    rig = two()
    rig.add(request("1", "a"))
    rig.run()
    assert end_of(rig, "1").waking_s == 0.0 and not rig.moves


def test_many_requests_for_one_and_one_for_another_are_two_wakes() -> None:
    """A A A B A A: not a swap a request."""
    rig = two(max_seqs=2)
    for index in range(12):
        rig.add(request(f"b{index}", "b", num_output=8))
    rig.run_until(rig.now + 0.3)
    rig.add(request("a", "a"))
    for index in range(12, 20):
        rig.add(request(f"b{index}", "b", num_output=8))
    rig.run()
    assert rig.kinds("b").count(MoveKind.WAKE) <= 2
    assert rig.kinds("a").count(MoveKind.WAKE) == 1


def test_models_wake_in_the_order_in_which_their_requests_are_due() -> None:
    slos = {"b": None, "c": Slo(5.0, 0.2), "d": Slo(0.5, 0.2)}
    models = [weighed(name, slo=slo) for name, slo in slos.items()]
    rig = rig_of(weighed("a", rate_per_s=9.0), *models, room=1)
    rig.add(request("1", "b"), request("2", "c"), request("3", "d"))
    rig.run()
    wakes = [move.model for _, move in rig.moves if move.kind is MoveKind.WAKE]
    assert wakes == ["d", "c", "b"]


def test_batch_work_wakes_nothing_that_is_expected_until_it_has_waited() -> None:
    rig = rig_of(weighed("a", rate_per_s=2.0), weighed("b"), room=1, ageing_s=2.0)
    rig.add(request("1", "b", service_class=BATCH))
    rig.run()
    (parked_s, _), *_ = rig.moves
    assert parked_s >= 102.0  # the rig begins at 100


def test_batch_work_wakes_its_model_at_once_where_the_other_is_hardly_used() -> None:
    rig = rig_of(weighed("a", rate_per_s=1e-3), weighed("b", rate_per_s=0.0), room=1, ageing_s=2.0)
    rig.add(request("1", "b", service_class=BATCH))
    rig.run()
    assert rig.moves[0][0] == 100.0


def test_batch_sequences_give_way_and_go_on_with_the_same_tokens() -> None:
    rig = two()
    line = request("1", "a", num_output=40, service_class=BATCH)
    rig.add(line)
    rig.run_until(rig.now + 0.3)
    rig.add(request("2", "b"))
    rig.run()
    assert end_of(rig, "1").num_preemptions == 1
    assert end_of(rig, "2").queue_s < 1.0 < end_of(rig, "1").preempted_s + 1.0
    rig.check_outputs([line, request("2", "b")])


def test_an_interactive_sequence_may_end_before_its_model_is_parked() -> None:
    rig = two()
    rig.add(request("1", "a", num_output=4))
    rig.step()
    rig.add(request("2", "b"), request("3", "a"))
    rig.run()
    assert end_of(rig, "1").num_preemptions == 0
    assert rig.end_s["1"] <= rig.moves[0][0]
    assert rig.end_s["2"] < rig.first_token_s["3"]  # which was not admitted any more


def test_a_long_interactive_sequence_is_interrupted_in_the_end() -> None:
    rig = two(max_model_len=200)
    rig.add(request("1", "a", num_output=150))
    rig.step()
    rig.add(request("2", "b"))
    rig.run()
    assert end_of(rig, "1").num_preemptions == 1
    assert end_of(rig, "1").waking_s > 0
    assert rig.moves[0][0] >= 100.0 + WAKE_S / 2


def test_the_one_whose_absence_costs_least_leaves() -> None:
    models = [weighed(name, rate_per_s=rate) for name, rate in zip("abc", (3, 1, 2), strict=True)]
    rig = rig_of(*models, weighed("d", residency=ON_DEMAND), room=3)
    rig.add(request("1", "d"))
    rig.run()
    assert rig.moves[0][1].model == "b"


def test_of_equals_the_one_on_demand_leaves_and_never_one_that_always_stays() -> None:
    kinds = {"a": Residency.ALWAYS, "b": Residency.AUTO, "c": ON_DEMAND}
    models = [weighed(name, residency=kind) for name, kind in kinds.items()]
    rig = rig_of(*models, weighed("d"), room=3)  # b and d from the start
    for index, name in enumerate("cdb"):
        rig.add(request(str(index), name))
        rig.run()
    parked = [move.model for _, move in rig.moves if move.kind is MoveKind.PARK]
    assert parked[1:] == ["c"] and "a" not in parked


def test_no_more_leave_than_must() -> None:
    sizes = {"a": 1, "b": 1, "c": 4}
    models = [weighed(name, size, rate_per_s=1.0) for name, size in sizes.items()]
    rig = rig_of(*models, weighed("d", 4, residency=ON_DEMAND), room=6)
    rig.add(request("1", "d"))
    rig.run()
    assert [move.model for _, move in rig.moves] == ["c", "d"]


def test_room_that_is_free_is_used_ahead_of_requests() -> None:
    models = [weighed("a", 2, rate_per_s=9.0), weighed("b"), weighed("c", 3, residency=ON_DEMAND)]
    rig = rig_of(*models, room=3)
    rig.add(request("1", "c"))
    rig.run()
    assert rig.resident == {"c"}
    rig.add(request("2", "a", num_output=40))
    rig.run()
    assert rig.resident == {"a", "b"}


def test_a_wake_that_fails_is_tried_again_and_others_are_not_harmed() -> None:
    rig = rig_of(*(weighed(name) for name in "abc"), room=2)
    rig.add(request("1", "c"), request("2", "a"))
    run_to_a_wake(rig)
    rig.end_move(fails=True)
    rig.run()
    assert rig.kinds("c").count(MoveKind.WAKE) == 2
    rig.check_outputs([request("1", "c"), request("2", "a")])


def test_requests_of_a_model_that_can_never_wake_end_with_the_cause() -> None:
    rig = two()
    rig.add(request("1", "b"), request("2", "b", service_class=BATCH), request("3", "a"))
    run_to_a_wake(rig)
    rig.end_move(fails=True, is_final=True)
    rig.add(request("4", "b"))
    rig.run()
    for name in "124":
        end = end_of(rig, name)
        assert (end.reason, end.code) == (FinishReason.ERROR, "model_failed")
        assert "the test failed it" in end.message
    assert end_of(rig, "3").reason is FinishReason.LENGTH
    assert stats(rig, "b").weights == "cold"


def test_a_park_that_fails_leaves_its_model_serving() -> None:
    rig = two()
    rig.add(request("1", "b"))
    rig.launch()
    assert rig.end_move(fails=True).kind is MoveKind.PARK
    rig.add(request("2", "a"))
    rig.run()
    assert rig.end_s["2"] < rig.end_s["1"]
    assert rig.kinds("a") == [MoveKind.PARK, MoveKind.PARK]


def test_a_model_that_was_lost_wakes_again_and_its_requests_go_on() -> None:
    rig = rig_of(weighed("a", residency=Residency.ALWAYS), weighed("b"), room=2)
    asked = [request("1", "a", num_output=20), request("2", "b", num_output=20)]
    rig.add(*asked)
    for _ in range(4):
        rig.step()
    rig.lose("a")
    rig.run()
    rig.check_outputs(asked)
    assert end_of(rig, "1").waking_s > 0 == end_of(rig, "2").waking_s
    assert rig.kinds("a") == [MoveKind.WAKE]


def test_a_lost_model_that_always_stays_wakes_without_a_request() -> None:
    rig = rig_of(weighed("a", residency=Residency.ALWAYS), weighed("b"), room=2)
    rig.lose("a")
    rig.settle()
    assert rig.kinds("a") == [MoveKind.WAKE]
    assert rig.scheduler.next_wakeup(rig.now) is None


def test_a_reset_forgets_the_move_under_way() -> None:
    rig = two()
    rig.add(request("1", "b"))
    rig.launch()
    assert rig.moving is not None
    move = rig.moving[1]
    rig.reset()
    assert stats(rig, "a").weights == "resident"
    assert not rig.scheduler.moved(move, 0.1, rig.now).events
    assert stats(rig, "a").weights == "resident"
    rig.run()
    rig.check_outputs([request("1", "b")])


def test_a_reset_can_name_what_is_resident() -> None:
    rig = two()
    rig.take(rig.scheduler.reset(rig.now, "lost", resident=["b"]))
    assert (stats(rig, "a").weights, stats(rig, "b").weights) == ("parked", "resident")
    with pytest.raises(ValueError, match="cannot be resident together"):
        rig.scheduler.reset(rig.now, "lost", resident=["a", "b"])


def test_the_expected_wait_is_that_of_the_moves_that_come_first() -> None:
    rig = rig_of(*(weighed(name) for name in "abc"), room=1)
    assert stats(rig, "a").expected_wait_s == 0.0
    assert stats(rig, "b").expected_wait_s == pytest.approx(WAKE_S)
    rig.add(request("1", "b"))
    rig.launch()
    rig.end_move()  # a is parked
    rig.launch()
    assert stats(rig, "b").expected_wait_s == pytest.approx(WAKE_S)
    assert stats(rig, "c").expected_wait_s == pytest.approx(2 * WAKE_S)


def test_with_room_for_all_nothing_moves() -> None:
    models = [weighed(name) for name in "abc"]
    rig = rig_of(*models, room=3)
    asked = [request(str(i), name, num_output=9) for i, name in enumerate("abcabc")]
    rig.add(*asked)
    rig.run()
    assert not rig.moves
    rig.check_outputs(asked)
