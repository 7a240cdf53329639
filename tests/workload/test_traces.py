"""The readers on the real files, against what their READMEs say of them."""

import csv
import json
import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from bench.traces.alpaca import read_alpaca_lengths
from bench.traces.muxserve import (
    read_arena_rates,
    read_chatlmsys_rates,
    read_point_rates,
)
from bench.traces.servegen import read_servegen, read_total_rates
from bench.traces.servegen_offline import read_servegen_offline
from bench.traces.vidur import read_vidur_lengths
from muxcluster.core.request import ServiceClass
from muxcluster.workload.files.azure import read_azure
from muxcluster.workload.files.mooncake import CONVERSATION_SPREAD_S, read_mooncake
from muxcluster.workload.metrics.window import rate_weighted
from muxcluster.workload.popularity import power_law_rates
from muxcluster.workload.summary import summarise


@pytest.mark.parametrize(("name", "rows"), [("conv", 10_108), ("code", 5_740)])
def test_azure(data_dir: Path, name: str, rows: int) -> None:
    path = data_dir / "azure_llm_2023" / f"AzureLLMInferenceTrace_{name}.first30min.csv"
    found = list(read_azure(path, "m"))
    times = [arrival.time_s for arrival in found]
    assert len(found) == rows and times[0] == 0.0 and times[-1] < 1800.0
    assert times == sorted(times) and len({arrival.request_id for arrival in found}) == rows
    text = path.read_text(encoding="utf-8").splitlines()[1:]
    assert [f"{a.prompt_tokens},{a.output_tokens}" for a in found] == [
        line.split(",", 1)[1] for line in text
    ]
    # the last second-of-hour, read from the text itself
    seconds = [60 * float(line[14:16]) + float(line[17:27]) for line in (text[0], text[-1])]
    assert times[-1] == pytest.approx(seconds[1] - seconds[0], abs=1e-6)


def test_mooncake(data_dir: Path) -> None:
    folder = data_dir / "mooncake"
    path = folder / "conversation_trace.first_half.jsonl"
    found = list(read_mooncake(path, "m", CONVERSATION_SPREAD_S))
    times = [arrival.time_s for arrival in found]
    stamps = [json.loads(line)["timestamp"] / 1000 for line in path.open(encoding="utf-8")]
    assert len(found) == 5_606 and times == sorted(times)
    offsets = np.array(times) - np.array(stamps)
    assert (
        offsets.min() >= 0
        and offsets.max() < 3.0
        and offsets.mean() == pytest.approx(1.5, rel=0.05)
    )
    (summary,) = summarise(found)
    assert summary.gap_cv < 1.5
    assert summary.prompt_tokens.mean == pytest.approx(12_035, rel=0.1)
    assert 0.25 < summary.seen_share < 0.45  # 37 % over the whole file
    synthetic = list(read_mooncake(folder / "synthetic_trace.first_half.jsonl", "m"))
    assert len(synthetic) == 1_925 and synthetic[-1].time_s == 510.672
    assert summarise(synthetic)[0].seen_share == pytest.approx(0.32, abs=0.02)


def test_servegen_offline(data_dir: Path) -> None:
    folder = data_dir / "servegen_offline"
    dictionary = list(read_servegen_offline(folder / "trace_a.rows_0_92.jsonl", "m", 20))
    assert len(dictionary) == 93 and {arrival.output_tokens for arrival in dictionary} == {20}
    assert {arrival.prefix.block_ids[:10] for arrival in dictionary if arrival.prefix} == {
        tuple(range(10))
    }
    topics = list(read_servegen_offline(folder / "trace_b.rows_0_125.jsonl", "m", 20))
    roots = Counter(arrival.prefix.block_ids[0] for arrival in topics if arrival.prefix)
    assert set(roots) == {625269, 625279, 625285, 625295, 625315}
    assert summarise(topics)[0].seen_share == pytest.approx(0.61, abs=0.03)
    heavy = list(read_servegen_offline(folder / "trace_d.rows_0_164.jsonl", "m"))
    assert np.mean([arrival.output_tokens for arrival in heavy]) == pytest.approx(1850, rel=0.1)
    scoring = list(read_servegen_offline(folder / "trace_e.rows_0_99.jsonl", "m"))
    assert {arrival.output_tokens for arrival in scoring} == {5}
    assert all(a.service_class is ServiceClass.BATCH and a.prefix is None for a in scoring)


def test_servegen_rates_and_lengths(data_dir: Path) -> None:
    folder = data_dir / "servegen"
    span = (86_400.0, 88_200.0)
    found = list(read_servegen(folder, "m-large").arrivals("m", 0, *span))
    rows = list(csv.DictReader((folder / "m-large.client_rates.csv").open(encoding="utf-8")))
    wanted = sum(600 * float(row["rate_per_s"]) for row in rows if float(row["t_s"]) < span[1])
    assert len(found) == pytest.approx(wanted, rel=0.001)
    times = [arrival.time_s for arrival in found]
    assert times == sorted(times) and times[0] >= 0 and times[-1] < 1800.0
    assert len({arrival.request_id for arrival in found}) == len(found)
    totals = read_total_rates(folder / "total_rate_600s.csv")["m-large"]
    published = totals.at(np.array([86_400.0, 87_000.0, 87_600.0])).mean()
    assert len(found) / 1800.0 == pytest.approx(published, rel=0.02)
    lengths = json.loads((folder / "m-large.length_quantiles.json").read_text(encoding="utf-8"))
    means = {
        client: found["windows"]["86400"]
        for client, found in lengths.items()
        if "86400" in found["windows"]
    }
    known = [arrival for arrival in found if arrival.request_id.split("/")[1] in means]
    assert len(known) > 10_000
    for field, drawn in (
        ("input_tokens", [arrival.prompt_tokens for arrival in known]),
        ("output_tokens", [arrival.output_tokens for arrival in known]),
    ):
        wanted = np.mean([means[a.request_id.split("/")[1]][field]["mean"] for a in known])
        assert np.mean(drawn) == pytest.approx(wanted, rel=0.02)


def test_servegen_lengths_of_one_client(data_dir: Path) -> None:
    folder = data_dir / "servegen"
    found = read_servegen(folder, "m-large").lengths["104"]
    prompt, output = found.draw(np.random.default_rng(0), 86_400.0, 50_000)
    # 38.14 and 708.05 in the file; straight lines between its quantiles would give 79 and 719
    assert output.mean() == pytest.approx(38.14, rel=0.02)
    assert prompt.mean() == pytest.approx(708.05, rel=0.02)
    images = read_servegen(folder, "mm-image").lengths["12"]
    prompt, _ = images.draw(np.random.default_rng(0), 0.0, 50_000)
    assert prompt.mean() == pytest.approx(1744.4 + 364.83, rel=0.03)


@pytest.mark.slow
def test_servegen_is_seeded_and_scales(data_dir: Path) -> None:
    client = read_servegen(data_dir / "servegen", "deepseek-r1")
    whole = list(client.arrivals("m", 1, 0.0, 7200.0))
    assert whole == list(client.arrivals("m", 1, 0.0, 7200.0))
    assert whole != list(client.arrivals("m", 2, 0.0, 7200.0))
    part = list(client.arrivals("m", 1, 3000.0, 7200.0))
    assert [a.request_id for a in part] == [a.request_id for a in whole if a.time_s >= 3000.0]
    fewer = list(client.arrivals("m", 1, 0.0, 7200.0, scale=0.1))
    assert len(fewer) == pytest.approx(0.1 * len(whole), rel=0.05)
    with pytest.raises(ValueError, match="span"):
        client.arrivals("m", 1, 5.0, 5.0)


@pytest.mark.parametrize("alpha", ["0.7", "1.3", "2.1"])
@pytest.mark.parametrize("scale", ["0.5", "0.75", "1.0", "1.25"])
def test_synthetic_rates_are_a_power_law(data_dir: Path, alpha: str, scale: str) -> None:
    path = data_dir / "muxserve" / "planner_points.json"
    found = read_point_rates(path, f"synth19_a{alpha}_s{scale}")
    rates = power_law_rates(len(found), float(alpha), 40.0 * float(scale))
    assert [model.rate_per_s for model in found] == pytest.approx(list(rates), rel=1e-12)
    assert Counter(model.shape for model in found) == {
        "llama-7b": 12, "llama-13b": 4, "llama-30b": 2, "llama-65b": 1,
    }  # fmt: skip


def test_chatlmsys_rates(data_dir: Path) -> None:
    folder = data_dir / "muxserve"
    path = folder / "chatlmsys_rates_day55.csv"
    for condense, total in ((500, 47.5), (800, 76), (1200, 114), (1600, 152), (2000, 190)):
        found = read_chatlmsys_rates(path, condense)
        assert sum(model.rate_per_s for model in found) == pytest.approx(total, abs=0.5)
    between = read_chatlmsys_rates(path, 1000)
    assert between[0].rate_per_s == pytest.approx(2 * 8.136574, abs=1e-5)
    point = read_point_rates(folder / "planner_points.json", "chatlmsys16_c1200")
    for mine, theirs in zip(read_chatlmsys_rates(path, 1200), point, strict=True):
        assert (mine.name, mine.shape) == (theirs.name, theirs.shape)
        assert mine.rate_per_s == pytest.approx(theirs.rate_per_s, abs=1e-5)
    with pytest.raises(ValueError, match="condensed"):
        read_chatlmsys_rates(path, 0)


def test_arena_rates(data_dir: Path) -> None:
    rates = read_arena_rates(data_dir / "muxserve" / "lmsys_arena_model_rates_125days.csv")
    top = sorted(rates.values(), reverse=True)
    assert len(rates) == 25 and sum(top) == pytest.approx(0.195, abs=0.001)
    assert top[0] / sum(top) == pytest.approx(0.36, abs=0.01)
    assert sum(top[:3]) / sum(top) == pytest.approx(0.54, abs=0.01)


def test_vidur_and_alpaca_lengths(data_dir: Path) -> None:
    path = data_dir / "vidur" / "arxiv_summarization_lengths.even_rows.csv"
    pairs = read_vidur_lengths(path)
    assert len(pairs.prompt) == 14_129
    assert pairs.prompt.mean() == pytest.approx(2581, rel=0.02)
    assert np.median(pairs.output) == pytest.approx(167, rel=0.03)
    path = data_dir / "alpaca_eval_lengths" / "lengths_even_idx.csv"
    answers = read_alpaca_lengths(path, "llama-2-7b-chat-hf")
    assert answers.output.mean() * 4.0 == pytest.approx(1480, rel=0.03)


def test_published_weighted_throughput_is_ours_times_the_rates(data_dir: Path) -> None:
    folder = data_dir / "muxserve"
    points: dict[tuple[str, str, str], dict[str, tuple[float, float]]] = {}
    with (folder / "e2e_synthetic_measured_per_llm.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            key = (row["alpha"], row["rate_scale"], row["system"])
            found = (float(row["rate_trunc"]), float(row["throughput_rps"]))
            points.setdefault(key, {})[row["llm"]] = found
    with (folder / "e2e_synthetic_measured_totals.csv").open(encoding="utf-8") as file:
        totals = list(csv.DictReader(file))
    assert len(totals) == len(points) == 36
    for row in totals:
        models = points[row["alpha"], row["rate_scale"], row["system"]]
        rates = {name: rate for name, (rate, _) in models.items()}
        served = {name: served for name, (_, served) in models.items()}
        weighted = rate_weighted(served, rates) * sum(rates.values())
        assert math.isclose(weighted, float(row["rate_weighted_throughput"]), rel_tol=1e-3)
