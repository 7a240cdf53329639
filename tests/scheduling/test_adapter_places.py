"""Places of adapters that come while a model runs: no two share one, and nobody starves."""

import random
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muxcluster.scheduling.state.places import AdapterPlaces
from tests.scheduling.rig import Rig, model_spec, request, unit_spec

NUM_PLACES = 3


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 6)), max_size=60))
def test_rows_hold_the_place_of_their_adapter(steps: list[tuple[int, int]]) -> None:
    """Each step lets a row leave, or take an adapter (0: none) where there is room."""
    places = AdapterPlaces(NUM_PLACES)
    held: dict[int, tuple[str, int]] = {}
    for row, number in steps:
        adapter = f"adapter-{number}" if number else ""
        if row in held:
            places.leave(row)
            del held[row]
        else:
            using = {name for name, _ in held.values() if name}
            has_room = not adapter or adapter in using or len(using) < NUM_PLACES
            assert places.has_room(adapter) == has_room
            if has_room:
                places.take(row, adapter)
                held[row] = adapter, places.of(row)
        places.check(list(held))
        by_place: dict[int, set[str]] = defaultdict(set)
        for each, (name, place) in held.items():
            if name:
                assert places.of(each) == place
                by_place[place].add(name)
        assert all(len(names) == 1 for names in by_place.values())


def test_the_adapter_that_rested_for_longest_gives_way() -> None:
    places = AdapterPlaces(2)
    for row, adapter in enumerate(("a", "b")):
        places.take(row, adapter)
    places.leave(1)
    places.leave(0)
    places.take(2, "c")  # in the place of b
    assert places.of(2) == 1
    places.take(3, "a")  # is still there
    assert places.of(3) == 0
    assert not places.has_room("b")


@pytest.mark.parametrize(("lane", "depth"), [("adbs", 2), ("mixed", 1)])
def test_no_running_job_reads_a_place_that_another_adapter_got(lane: str, depth: int) -> None:
    """More adapters than places, over a real scheduler; some requests have none."""
    rng = random.Random(lane)
    models = (model_spec("a", adapter_places=2, adapter_rank=4),)
    rig = Rig(unit_spec(models, lane=lane, pipeline_depth=depth))
    asked = []
    for number in range(40):
        name = rng.choice(["", "x@1", "y@1", "z@1", "z@2"])
        path = f"/adapters/{name}" if name else ""
        asked.append(
            request(
                f"r{number}",
                num_prompt=rng.randint(1, 30),
                num_output=rng.randint(1, 12),
                adapter=name,
                adapter_path=path,
            )
        )
    by_id = {each.request_id: each for each in asked}
    place_of: dict[int, tuple[str, int]] = {}  # table row -> adapter and place
    pending = list(asked)
    while pending or rig.num_open:
        if pending and rng.random() < 0.5:
            rig.add(pending.pop())
        for job in rig.launch():
            for admission in job.admissions:
                its = by_id[admission.request_id]
                assert (admission.adapter, admission.adapter_path) == (
                    its.adapter,
                    its.adapter_path,
                )
                place_of[admission.row] = admission.adapter, admission.adapter_place
            _check_places([running for _, running in rig.running], place_of)
        if rig.running:
            rig.finish()
    rig.check_outputs(asked)
    rig.check_empty()


def _check_places(jobs, place_of) -> None:
    """All rows of running jobs with one place have one adapter."""
    names: dict[int, set[str]] = defaultdict(set)
    for job in jobs:
        for row in job.rows.table_rows.tolist():
            adapter, place = place_of[row]
            if adapter:
                names[place].add(adapter)
    assert all(len(found) == 1 for found in names.values()), names


def test_a_model_without_places_refuses_them() -> None:
    rig = Rig(unit_spec((model_spec("a"),)))
    rig.add(request("r", adapter="x@1", adapter_path="/adapters/x"))
    end = rig.ends["r"]
    assert (end.code, "adapter_places" in end.message) == ("model_not_found", True)
