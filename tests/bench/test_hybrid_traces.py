"""The bench of real traces takes what the files say: times, lengths, speeds."""

import csv
import json
from datetime import datetime
from pathlib import Path

import pytest

from bench.hybrid.simulated.setups import ENTRIES, Point
from bench.hybrid.traces import SLICES, base_rate, batch_lengths, builder, points_of


def conversations(data_dir: Path) -> list[tuple[float, int, int]]:
    """(seconds since the first, prompt, output), read without our readers."""
    path = data_dir / "azure_llm_2023" / "AzureLLMInferenceTrace_conv.first30min.csv"
    with path.open() as file:
        rows = list(csv.DictReader(file))
    times = [datetime.fromisoformat(row["TIMESTAMP"][:26]) for row in rows]
    return [
        ((time - times[0]).total_seconds(), int(row["ContextTokens"]), int(row["GeneratedTokens"]))
        for time, row in zip(times, rows, strict=True)
    ]


def test_interactive_requests_are_the_trace_at_its_speed(data_dir: Path) -> None:
    found = conversations(data_dir)
    rate = len(found) / found[-1][0]
    assert base_rate(data_dir) == pytest.approx(rate, rel=1e-6)
    point = Point("llama-3-8b", "scoring", 2.0 * base_rate(data_dir), 60.0)
    case = builder(data_dir)(point, ENTRIES[0], 0)
    loaded = list(case.load.arrivals(0, case.duration_s))
    wanted = [each for each in found if each[0] < 120.0]
    assert len(loaded) == len(wanted)
    for arrival, (time_s, prompt, output) in zip(loaded, wanted, strict=True):
        assert arrival.time_s == pytest.approx(time_s / 2.0, abs=1e-5)
        assert (arrival.prompt_tokens, arrival.output_tokens) == (prompt, output)
        assert arrival.model == "llama-3-8b"


@pytest.mark.parametrize("name", SLICES)
def test_batch_lengths_are_those_of_the_slices(data_dir: Path, name: str) -> None:
    wanted = []
    for letter in SLICES[name]:
        (path,) = (data_dir / "servegen_offline").glob(f"trace_{letter}.*.jsonl")
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        wanted += [(row["input_length"], row.get("output_length", 128)) for row in rows]
    pairs = batch_lengths(data_dir, name)
    assert sorted(zip(pairs.prompt.tolist(), pairs.output.tolist(), strict=True)) == sorted(wanted)


def test_points_are_every_speed_beside_every_slice(data_dir: Path) -> None:
    points = points_of(data_dir, ["llama-3-8b"], 60.0, is_quick=False)
    assert len(points) == len(set(points)) == 12
    assert {point.lengths for point in points} == set(SLICES)
    assert len(points_of(data_dir, ["llama-3-8b"], 60.0, is_quick=True)) == 2
