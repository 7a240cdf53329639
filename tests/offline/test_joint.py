"""Memory of one unit for the jobs of several models: the closed form, and what it is good for."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muxcluster.offline.blend.lengths import known_lengths
from muxcluster.offline.blend.scan import share_memory
from muxcluster.offline.feed.feeder import BatchFeeder, Room
from muxcluster.offline.joint import JointMemory, MemoryNeed, divide_memory
from muxcluster.offline.order.orders import OfflineJob
from tests.offline.blend_cases import MODEL, Case, cases

SECONDS = st.floats(0.1, 1000)


@given(SECONDS, SECONDS, SECONDS, SECONDS)
def test_two_jobs_get_what_the_dual_scanners_equations_say(
    compute: float, memory: float, other_compute: float, other_memory: float
) -> None:
    parts = divide_memory([MemoryNeed(memory, 0), MemoryNeed(other_memory, 0)], 60.0)
    density, other = compute / memory, other_compute / other_memory
    target = (compute + other_compute) / (memory + other_memory)
    assert sum(parts) == pytest.approx(60.0)
    assert parts[0] * density + parts[1] * other == pytest.approx(60.0 * target)
    if abs(density / other - 1) > 1e-3:
        assert parts[0] == pytest.approx(share_memory(density, other, target, 60.0), rel=1e-6)


@given(st.lists(SECONDS, min_size=1, max_size=5))
def test_in_any_number_memory_follows_memory_seconds(memory_s: list[float]) -> None:
    parts = divide_memory([MemoryNeed(each, 0) for each in memory_s], 80.0)
    assert parts == pytest.approx([80.0 * each / sum(memory_s) for each in memory_s])


def _end_s(memory_s: tuple[float, float], share: float) -> float:
    """When both jobs have ended if their steps read what they hold at the same rate: a job goes on
    alone with the memory of its part until both have ended, as requests are not moved."""
    return max(memory_s[0] / share, memory_s[1] / (1 - share))


@given(SECONDS, SECONDS)
def test_no_other_division_ends_earlier(memory_s: float, other_s: float) -> None:
    parts = divide_memory([MemoryNeed(memory_s, 0), MemoryNeed(other_s, 0)], 1.0)
    ours = _end_s((memory_s, other_s), parts[0])
    for share in np.linspace(0.001, 0.999, 999):
        assert ours <= _end_s((memory_s, other_s), float(share)) * (1 + 1e-9)


@given(st.lists(st.tuples(SECONDS, st.floats(0, 50)), min_size=1, max_size=5), st.floats(1, 100))
def test_nobody_gets_less_than_he_needs_as_long_as_there_is_enough(
    asked: list[tuple[float, float]], size: float
) -> None:
    wants = [MemoryNeed(*each) for each in asked]
    parts = divide_memory(wants, size)
    assert sum(parts) == pytest.approx(size)
    needed = sum(want.least_bytes for want in wants)
    for want, part in zip(wants, parts, strict=True):
        assert part >= want.least_bytes * min(1.0, size / max(needed, 1e-9)) * (1 - 1e-9)
    above = [
        (part, want.memory_s)
        for want, part in zip(wants, parts, strict=True)
        if part > want.least_bytes * (1 + 1e-9)
    ]
    # who is not held up by his least has the same part for each second
    rates = [part / seconds for part, seconds in above]
    assert not rates or max(rates) == pytest.approx(min(rates), rel=1e-6)


def _feeder(case: Case) -> BatchFeeder:
    return BatchFeeder(OfflineJob(case.tree, known_lengths(case.by_place), MODEL, 1e9), "dfs")


@given(cases(), cases(), st.data())
def test_two_jobs_run_to_their_ends_within_the_memory_of_both(
    case: Case, other: Case, data: st.DataObject
) -> None:
    jobs = {"a": (case, _feeder(case)), "b": (other, _feeder(other))}
    memory, feeders = JointMemory(), {name: feeder for name, (_, feeder) in jobs.items()}
    alive: list[tuple[str, int]] = []
    over: list[tuple[str, int]] = []
    now = 0.0
    while alive or any(len(feeder) for _, feeder in jobs.values()):
        now += data.draw(st.floats(0, 100)) if alive else 31.0
        others = float(data.draw(st.sampled_from([0, 0, 100]))) if alive else 0.0
        room = Room(now, float(data.draw(st.integers(0, 600))), others, 5)
        rooms = memory.rooms(feeders, room)
        kept = sum(feeder.open_bytes for _, feeder in jobs.values() if not len(feeder))
        parts = sum(each.size_bytes - each.other_bytes for each in rooms.values())
        assert parts <= max(kept, room.size_bytes - others) + 1e-6
        for name, own in rooms.items():
            alive += [(name, fed.number) for fed in jobs[name][1].take(own)]
        assert alive, "the unit is idle, and nobody else is there"
        name, number = alive.pop(data.draw(st.integers(0, len(alive) - 1)))
        jobs[name][1].ended(number, jobs[name][0].outputs[number])
        over.append((name, number))
    wanted = [(name, n) for name, (each, _) in jobs.items() for n in range(len(each.sequences))]
    assert sorted(over) == wanted
    for _, feeder in jobs.values():
        assert feeder.memory_s_left == pytest.approx(0.0, abs=1e-6)


@given(cases(), st.data())
def test_memory_seconds_left_are_those_of_requests_not_over(
    case: Case, data: st.DataObject
) -> None:
    feeder = _feeder(case)
    by_number = dict(zip(case.tree.order.tolist(), case.leaves.memory_s.tolist(), strict=True))
    assert feeder.memory_s_left == pytest.approx(sum(by_number.values()))
    for fed in feeder.take(Room(0.0, 1e15, 0.0, 1 << 40)):
        if data.draw(st.booleans()):
            feeder.ended(fed.number, None)
            del by_number[fed.number]
    assert feeder.memory_s_left == pytest.approx(sum(by_number.values()), abs=1e-6)
