"""When a batch should end: from the lines that ended and the tokens of those that run."""

import random
from collections.abc import Callable, Sequence

import pytest

from muxcluster.batch.service import progress as module
from muxcluster.batch.service.progress import Progress
from muxcluster.batch.store.job import Use


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


def test_nothing_is_said_before_the_first_token(clock):
    progress = Progress(10, 0, 1000, started_s=100.0)
    clock[0] += 5
    assert progress.left_s() is None


def test_lines_that_run_count_by_their_tokens(clock):
    progress = Progress(4, 0, 400, started_s=100.0)
    clock[0] += 10
    for line in (1, 2):
        progress.advance(line, 50)
    assert progress.left_s() == pytest.approx(10 * 300 / 100)
    progress.end(1, 100, Use())
    assert progress.left_s() == pytest.approx(10 * 250 / 150)
    progress.end(2, 100, Use())
    assert progress.left_s() == pytest.approx(10)
    assert not progress.under_way


def test_a_line_that_lost_its_unit_begins_again(clock):
    progress = Progress(2, 0, 200, started_s=100.0)
    clock[0] += 10
    progress.advance(1, 90)
    progress.advance(1, 10)
    assert progress.left_s() == pytest.approx(10 * 190 / 10)


def test_the_estimate_of_even_lines_holds_at_any_moment(clock):
    """Eight lines at a time, all as long, start and end together: only their tokens tell."""
    progress = Progress(32, 0, 3200, started_s=100.0)
    for wave in range(4):
        for token in range(1, 101):
            clock[0] += 1
            for line in range(8):
                progress.advance(wave * 8 + line, token)
            assert progress.left_s() == pytest.approx(400 - (clock[0] - 100))
        for line in range(8):
            progress.end(wave * 8 + line, 100, Use())
    assert progress.left_s() == 0


def _estimates(
    now: list[float], weights: Sequence[int], seconds_of: Callable[[float, int], float]
) -> tuple[list[tuple[float, float]], float]:
    """(when, end by the estimate) after each line, and the true end, in seconds since the start.

    seconds_of: (share of the weight that is done, weight) -> how long the line takes.
    """
    progress = Progress(len(weights), 0, sum(weights), started_s=now[0])
    assert progress.left_s() is None
    found = []
    for line, weight in enumerate(weights):
        now[0] += seconds_of(progress.weight_done / sum(weights), weight)
        progress.end(line, weight, Use(weight, 0, 0))
        left_s = progress.left_s()
        assert left_s is not None
        found.append((progress.elapsed_s, progress.elapsed_s + left_s))
    assert progress.left_s() == 0
    return found, progress.elapsed_s


def _worst_from_half(found: Sequence[tuple[float, float]], truth_s: float) -> float:
    """Greatest error of the end, over the whole time."""
    return max(abs(end - truth_s) for at, end in found if at >= truth_s / 2) / truth_s


def _weights(count: int = 2000) -> list[int]:
    rng = random.Random(3)
    return [round(rng.lognormvariate(5, 1)) for _ in range(count)]


def test_at_an_even_speed_the_estimate_is_the_truth(clock) -> None:
    found, truth_s = _estimates(clock, _weights(), lambda share, weight: weight * 1e-3)
    assert all(end == pytest.approx(truth_s, rel=0.02) for at, end in found if at > 0)


def test_long_lines_last_change_nothing(clock) -> None:
    """Lines count by their tokens."""
    found, truth_s = _estimates(clock, sorted(_weights()), lambda share, weight: weight * 1e-3)
    assert _worst_from_half(found, truth_s) < 0.01


def test_a_slow_start_is_forgotten_by_half_time(clock) -> None:
    found, truth_s = _estimates(
        clock, _weights(), lambda share, weight: weight * (5e-3 if share < 0.05 else 1e-3)
    )
    assert _worst_from_half(found, truth_s) < 0.05


@pytest.mark.parametrize("slow", [0.5, 3.0])
def test_it_follows_a_load_that_changes(clock, slow: float) -> None:
    """From a fifth of the work on everything takes so much longer, or less."""
    found, truth_s = _estimates(
        clock, _weights(), lambda share, weight: weight * 1e-3 * (slow if share > 0.2 else 1.0)
    )
    assert _worst_from_half(found, truth_s) < 0.2
    late = [end for at, end in found if at > 0.75 * truth_s]
    assert max(abs(end - truth_s) for end in late) / truth_s < 0.1


def test_a_stall_moves_the_end(clock) -> None:
    progress = Progress(3, 0, 30, started_s=clock[0])
    clock[0] += 10
    progress.end(1, 10, Use())
    assert progress.left_s() == pytest.approx(20)
    clock[0] += 30
    assert progress.left_s() == pytest.approx(80)


def test_the_time_stands_still_after_the_last_line(clock) -> None:
    progress = Progress(5, 4, 7, started_s=clock[0])
    clock[0] += 2
    progress.end(5, 7, Use(4, 1, 3))
    clock[0] += 50
    assert (progress.elapsed_s, progress.left_s()) == (2, 0)
    assert progress.use == Use(4, 1, 3)


def test_a_million_lines_take_no_memory(clock) -> None:
    progress = Progress(200_000, 0, 200_000, started_s=clock[0])
    for line in range(200_000):
        clock[0] += 0.5
        progress.end(line, 1, Use())
    assert len(progress.marks) <= 128
