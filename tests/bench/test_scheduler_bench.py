"""bench/scheduler.py at tiny size: the record's shape, and that its load is what it says."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bench.scheduling.hybrid import HybridCase, HybridLoad, hybrid_spec
from bench.scheduling.load import Profiled, SteadyLoad, sharegpt_lengths, unit_spec
from muxcluster.core.kvshape import KvShape
from tests.conftest import ROOT

SIZES = (8, 24)
SCRIPT = ROOT / "bench" / "scheduler.py"


def bench(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = (sys.executable, str(SCRIPT), "--quick", "--steps", "20", *arguments)
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=True, timeout=120)


def test_stdout_holds_the_record_alone(tmp_path) -> None:
    sizes = map(str, SIZES)
    done = bench("--json", "-", "--data", str(tmp_path), "--sizes", *sizes, cwd=tmp_path)
    record = json.loads(done.stdout)
    assert "step_us_p50_at_8" in done.stderr
    names = [claim["name"] for claim in record["claims"]]
    assert names == ["step_us_p50_at_8", "step_us_p50_at_24"]
    assert all(set(claim) == {"name", "value", "unit", "baseline"} for claim in record["claims"])
    for claim, case in zip(record["claims"], record["cases"], strict=False):
        samples = record["samples"][case["case"]]
        assert claim["unit"] == "us"
        assert case["num_models"] == 8
        assert case["blocks_per_column"] == 8 * 4
        assert abs(claim["value"] - np.median(samples)) < 0.11, "a claim is not its samples' median"
    assert record["command"].startswith("python bench/scheduler.py --quick")
    assert record["versions"]["numpy"] == np.__version__
    assert record["machine"]["cores"] >= 1


def test_every_case_is_there_and_every_step_is_kept(tmp_path) -> None:
    path = tmp_path / "results" / "record.json"
    done = bench("--json", str(path), "--data", str(tmp_path), "--sizes", "8", cwd=tmp_path)
    record = json.loads(path.read_text(encoding="utf-8"))
    assert "step_us_p50_at_8 = " in done.stdout
    shapes = {(case["shape"], case["num_models"]) for case in record["cases"]}
    assert len(shapes) == len(record["cases"]) == 5
    assert {"llama-2-7b", "llama-3-8b", "llama-3-70b"} <= {shape for shape, _ in shapes}
    assert [len(samples) for samples in record["samples"].values()] == [20] * 5


def test_the_population_stays_and_all_its_work_is_done() -> None:
    rng = np.random.default_rng(0)
    lengths = sharegpt_lengths(rng, 500)
    shape = KvShape(num_layers=2, num_kv_heads=2, head_dim=128, itemsize=2)
    load = SteadyLoad(unit_spec(shape, 3, 30, lengths.mean_live_tokens), lengths, 30, rng)
    num_ended = num_tokens = 0
    for _ in range(600):
        load.launch(load.scheduler.next_jobs(load.now))
        output = load.scheduler.complete(*load.finish(), load.now)
        num_tokens += len(output.tokens)
        for request in load.replacements(output):
            num_ended += 1
            load.scheduler.add(request, load.now)
        stats = load.scheduler.stats(load.now, "unit").models
        assert sum(model.num_running + model.num_waiting for model in stats) == 30
    load.scheduler.check()
    # Ends come at the rate that the lengths imply, within chance.
    expected = num_tokens / lengths.output.mean()
    assert abs(num_ended - expected) < 6 * expected**0.5
    assert (
        load.scheduler.stats(load.now, "unit").free_blocks
        < 0.1 * load.scheduler.stats(load.now, "unit").num_blocks
    ), "the prefix cache is not full"


@pytest.mark.slow
def test_hybrid_claims_are_the_medians_of_their_cases(tmp_path) -> None:
    done = bench("--hybrid", "--cpu", "--json", "-", "--sizes", "24", cwd=tmp_path)
    record = json.loads(done.stdout)
    names = [claim["name"] for claim in record["claims"]]
    lanes = "adbs_8", "mixed_8", "mixed_1"
    assert names == [f"hybrid_{lane}_step_us_p50_at_24" for lane in lanes]
    assert {case["shape"] for case in record["cases"]} == {"8 layers x 4 KV heads", "llama-2-7b"}
    for claim, case in zip(record["claims"], record["cases"], strict=False):
        samples = record["samples"][case["case"]]
        assert len(samples) == 20
        assert abs(claim["value"] - np.median(samples)) < 0.11, "a claim is not its samples' median"


def test_the_hybrid_load_lends_saves_restores_and_loses_nobody() -> None:
    rng = np.random.default_rng(0)
    shape = KvShape(num_layers=2, num_kv_heads=2, head_dim=128, itemsize=2)
    case = HybridCase("tiny", shape, "mixed", 1, 40, sharegpt_lengths(rng, 500))
    load = HybridLoad(hybrid_spec(case), case.lengths, 40, rng, Profiled())
    num_held = num_with_copies = 0
    for _ in range(800):
        load.launch(load.scheduler.next_jobs(load.now))
        job, result = load.finish()
        num_with_copies += len(job.copies) > 0
        output = load.scheduler.complete(job, result, load.now)
        for request in load.replacements(output):
            load.scheduler.add(request, load.now)
        (stats,) = load.scheduler.stats(load.now, "unit").models
        num_held = max(num_held, load.num_held)
        assert stats.num_running + stats.num_waiting + load.num_held == 40
    load.scheduler.check()
    assert num_held > 0, "there are no bursts"
    assert stats.num_lent_columns > 0
    assert stats.num_saved_slots > 0
    assert stats.num_restored_slots > 0
    assert stats.num_recomputed_tokens == 0
    assert 0 < num_with_copies < 800
