"""The table's numbers against arithmetic by hand; the picture's lanes and files."""

import io
import math
from pathlib import Path

import pytest
from rich.console import Console

from muxcluster.core.served import JobRecord
from muxcluster.demo.replay import Sample
from muxcluster.demo.report import summarise, table
from muxcluster.demo.timeline import draw, lanes, save


def test_a_model_is_summarised_as_by_hand() -> None:
    samples = [
        Sample("a", 0.0, 0.5, 2.5, 10, 5),  # 2.0 s for 4 tokens after the first
        Sample("a", 1.0, 0.1, 1.1, 10, 1),  # one token has no time per token
        Sample("b", 2.0, 0.0, 4.0, 0, 0, "refused"),
    ]
    a, b = summarise(samples, {"a": 10, "b": 20}, {"a": 12, "b": 18})
    assert (a.num_requests, a.num_failed, a.quota_start, a.quota_end) == (2, 0, 10, 12)
    assert a.ttft_p50_s == pytest.approx(0.3)
    assert a.tpot_p50_s == pytest.approx(0.5) and a.tpot_p99_s == pytest.approx(0.5)
    assert a.tokens_per_s == pytest.approx(6 / 4.0)
    assert (b.num_requests, b.num_failed) == (1, 1)
    assert math.isnan(b.ttft_p50_s) and b.tokens_per_s == 0.0


def test_the_table_names_every_model_and_its_quotas() -> None:
    reports = summarise([Sample("a", 0.0, 0.5, 2.5, 10, 5)], {"a": 10}, {"a": 12})
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(table(reports))
    text = console.export_text()
    assert "10 → 12" in text and "500" in text and " a " in text


def _job(phase: str, share: float, start_s: float, model: str = "m") -> JobRecord:
    return JobRecord(0, model, phase, 0, share, start_s, start_s + 0.5, 1, 8)


def test_lanes_put_prefill_above_decode() -> None:
    jobs = [_job("decode", 0.5, 0), _job("prefill", 0.5, 1), _job("decode", 1.0, 2)]
    assert lanes(jobs) == [("prefill", 0.5), ("decode", 1.0), ("decode", 0.5)]


def test_the_picture_shows_the_window_and_is_written_twice(tmp_path: Path) -> None:
    jobs = [_job("prefill", 0.5, 1.0, "a"), _job("decode", 1.0, 2.0, "b"), _job("mixed", 1.0, 99.0)]
    figure = draw(jobs, (1.0, 5.0))
    axes = figure.axes[0]
    assert [tick.get_text() for tick in axes.get_yticklabels()] == [
        "prefill, 50% of SMs",
        "decode, 100% of SMs",
    ]
    assert axes.get_xlim() == (0.0, 4.0)
    svg, png = save(figure, tmp_path / "timeline")
    assert svg.read_text().startswith("<?xml") and png.read_bytes().startswith(b"\x89PNG")
