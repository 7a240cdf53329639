"""Jobs and errors of `bench/batch.py`."""

import json

import pytest

from bench.batch import WARM, WARM_COUNT, Ran, speed, write_jobs


def _ran(order: str, seconds: float, estimates: list[tuple[float, float, float]]) -> Ran:
    return Ran(order, {}, seconds, 1.0, 900, 450, 100, estimates)


def test_errors_are_of_the_second_half() -> None:
    ran = _ran("auto", 100.0, [(20, 0.2, 300.0), (60, 0.5, 50.0), (80, 0.9, 15.0)])
    assert ran.error_at_half() == pytest.approx(0.25)
    assert ran.errors() == pytest.approx([0.1, 0.05])


def test_speed_is_the_median_of_an_order() -> None:
    runs = [_ran("auto", 10.0, []), _ran("fcfs", 20.0, []), _ran("auto", 5.0, [])]
    assert speed(runs, "auto") == pytest.approx(150.0)
    assert speed(runs, "fcfs") == pytest.approx(50.0)


def test_jobs_are_the_same_but_for_their_salt(tmp_path) -> None:
    warm, *jobs = write_jobs(tmp_path, 80, [WARM, "a", "b"], seed=0)
    assert len(warm.read_text().splitlines()) == min(WARM_COUNT, 80)
    contents = []
    for path in jobs:
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        assert {line["body"].pop("cache_salt") for line in lines} == {path.stem}
        assert len({line["custom_id"] for line in lines}) == 80
        contents.append(lines)
    assert contents[0] == contents[1]
    prompts = [line["body"]["prompt"] for line in contents[0]]
    assert len({tuple(prompt[:40]) for prompt in prompts}) == 10
    assert len({tuple(prompt) for prompt in prompts}) == 80
