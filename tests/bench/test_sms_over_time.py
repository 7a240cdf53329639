"""Jobs as areas: as much of the SMs as they have, for as long as they run, none over another."""

import pytest

pytest.importorskip("matplotlib")

from matplotlib.figure import Figure

from bench.muxserve.simulated.sms_over_time import areas, sms_over_time
from muxcluster.sim.core.timeline import JobSpan

MODELS = ("a", "b")


def span(model: str, phase: str, share: float, start_s: float, end_s: float, steps: int = 1):
    return JobSpan("unit", model, phase, share, start_s, end_s, 1, 1, steps, end_s - start_s)


SPANS = (
    span("a", "prefill", 0.5, 0.0, 2.0),
    span("b", "decode", 0.3, 0.0, 3.0, steps=3),
    span("a", "decode", 0.2, 1.0, 2.0),
    span("a", "decode", 0.7, 2.0, 4.0),
)


def test_every_job_has_its_share_for_its_time() -> None:
    found = list(areas(SPANS, MODELS))
    for each in SPANS:
        mine = [area for area in found if area.span is each]
        assert all(area.high - area.low == pytest.approx(each.share) for area in mine)
        assert sum(area.end_s - area.start_s for area in mine) == each.end_s - each.start_s


def test_areas_never_overlap_and_stay_within_the_gpu() -> None:
    found = list(areas(SPANS, MODELS))
    assert all(area.low >= 0 and area.high <= 1 for area in found)
    for one in found:
        for other in found:
            apart_in_time = one.end_s <= other.start_s or other.end_s <= one.start_s
            apart_in_sms = one.high <= other.low or other.high <= one.low
            assert one is other or apart_in_time or apart_in_sms


def test_prefill_lies_below_and_a_job_that_does_not_move_is_one_area() -> None:
    found = list(areas(SPANS, MODELS))
    (prefill,) = [area for area in found if area.span.phase == "prefill"]
    assert (prefill.low, prefill.start_s, prefill.end_s) == (0.0, 0.0, 2.0)
    moved = [(area.start_s, area.high) for area in found if area.span is SPANS[1]]
    assert sorted(moved) == [(0.0, 1.0), (1.0, 0.8), (2.0, 0.3)]


def test_only_what_runs_then_is_drawn_in_milliseconds() -> None:
    axes = Figure().subplots()
    sms_over_time(axes, SPANS, {"a": "red", "b": "blue"}, 2.5, 3.5)
    assert axes.get_xlim() == (0, 1000)
    boxes = [path for drawn in axes.collections[:-1] for path in drawn.get_paths()]
    places = [path.vertices[:, 0].min() for path in boxes]
    assert sorted(places) == [-500.0, -500.0]
    lines = axes.collections[-1].get_segments()
    steps = [line for line in lines if line[0][0] == line[1][0]]
    assert sorted(line[0][0] for line in steps) == [-500.0, -500.0], "b's third step, a's job"
