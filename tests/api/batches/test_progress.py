"""When a batch should end: from the lines that ended and the tokens of those that run."""

import pytest

from muxcluster.api.batches import progress as module
from muxcluster.api.batches.answering import Use
from muxcluster.api.batches.progress import Progress


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
