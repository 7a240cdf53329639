"""`muxcluster simulate`: its table and JSON, its files, and every refusal in one line."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from muxcluster.workload.arrival import Arrival
from muxcluster.workload.files.store import save
from tests.cli.calls import call, refusal

SHORT = ("--duration", "8", "--processes", "1")


def simulated(capsys, *arguments: str) -> dict:
    """The JSON of a call that must succeed quietly."""
    code, out, err = call(capsys, "simulate", *arguments, *SHORT, "--json")
    assert (code, err) == (0, "")
    return json.loads(out)


def test_the_table_has_a_line_a_system_and_says_who_suffers(capsys, small) -> None:
    code, out, err = call(
        capsys, "simulate", small(), *SHORT, "--systems", "muxserve,temporal", "--by-model"
    )
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith("rate scale 1: ")
    assert lines[1].split()[:4] == ["system", "req/s", "tokens/s", "served"]
    assert [line.split()[0] for line in lines if line.startswith(("muxserve", "temporal"))] == [
        "muxserve",
        "temporal",
    ]
    assert sum(line.startswith("  chat") for line in lines) == 2
    assert sum("suffers most" in line for line in lines) == 2


def test_json_holds_every_case_and_its_figures_add_up(capsys, small) -> None:
    found = simulated(capsys, small(), "--rate-scale", "0.5,2", "--systems", "muxserve,round-robin")
    cases = found["cases"]
    assert [(case["rate_scale"], case["system"]) for case in cases] == [
        (0.5, "muxserve"),
        (0.5, "round-robin"),
        (2.0, "muxserve"),
        (2.0, "round-robin"),
    ]
    assert found["refused"] == []
    for case in cases:
        models = case["models"].values()
        assert case["total"]["num_requests"] == sum(model["num_requests"] for model in models)
        assert set(case["models"]) == {"chat", "code", "rare"}
        assert "8" in case["total"]["attainment"]
        assert case["models"]["code"]["target_attainment"] is None
        assert case["models"]["chat"]["target_attainment"] is not None
    offered = [case["total"]["num_requests"] for case in cases]
    assert offered[0] == offered[1] < offered[2] == offered[3]


def test_the_same_seed_gives_the_same_requests_and_another_others(capsys, small) -> None:
    def quantiles(*more: str) -> list[float]:
        (case,) = simulated(capsys, small(), "--systems", "temporal", *more)["cases"]
        return case["total"]["latency"]["quantiles"]

    assert quantiles() == quantiles("--seed", "0")
    assert quantiles() != quantiles("--seed", "1")


def test_popularity_follows_the_power_law_in_the_order_of_the_rates(capsys, small) -> None:
    law = ("--alpha", "1", "--max-rate", "60", "--systems", "muxserve")
    (case,) = simulated(capsys, small(), *law)["cases"]
    counts = [case["models"][name]["num_requests"] for name in ("chat", "code", "rare")]
    for count, rate in zip(counts, (60, 30, 20), strict=True):
        mean = 8 * rate
        assert abs(count - mean) < 5 * mean**0.5


def test_constant_lengths_are_the_configured_means(capsys, small) -> None:
    (case,) = simulated(capsys, small(), "--systems", "muxserve", "--length-sigma", "0")["cases"]
    total = case["total"]
    # Of the requests of 8 s, those that ended within 16 s: the last ones take about 8 s.
    assert 0.9 * total["num_requests"] < total["latency"]["count"] <= total["num_requests"]
    tokens = total["latency"]["mean"] / total["normalised"]["mean"]
    assert tokens == pytest.approx(338)


def own_trace(path: Path, models: tuple[str, ...] = ("chat", "code")) -> Path:
    arrivals = [
        Arrival(0.25 * index, f"r{index}", models[index % len(models)], 50 + index, 10)
        for index in range(20)
    ]
    save(path, arrivals)
    return path


def azure_trace(path: Path) -> Path:
    rows = [f"2024-01-01 00:00:{index:02}.5000000,{100 + index},{5 + index}" for index in range(8)]
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "\n".join(rows) + "\n")
    return path


def mooncake_trace(path: Path) -> Path:
    rows = [
        {
            "timestamp": 500 * index,
            "input_length": 600,
            "output_length": 4,
            "hash_ids": [0, index + 1],
        }
        for index in range(8)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_our_own_trace_is_replayed_as_it_is(capsys, small, tmp_path) -> None:
    trace = str(own_trace(tmp_path / "t.jsonl"))
    (case,) = simulated(capsys, small(), "--trace", trace, "--systems", "muxserve")["cases"]
    assert {name: model["num_requests"] for name, model in case["models"].items()} == {
        "chat": 10,
        "code": 10,
        "rare": 0,
    }
    assert case["total"]["finished_share"] == 1.0
    (half,) = simulated(
        capsys, small(), "--trace", trace, "--rate-scale", "0.25", "--systems", "muxserve"
    )["cases"]
    assert half["total"]["num_requests"] == 8, "at a quarter of the speed 8 come in 8 s"


@pytest.mark.parametrize("make", [azure_trace, mooncake_trace])
def test_foreign_traces_are_known_by_their_content(capsys, small, tmp_path, make) -> None:
    trace = make(tmp_path / "trace.txt")
    (case,) = simulated(capsys, small(), "--trace", str(trace), "--systems", "temporal")["cases"]
    counts = {name: model["num_requests"] for name, model in case["models"].items()}
    assert sum(counts.values()) == 8
    assert counts["chat"] >= counts["rare"]


def test_a_given_plan_is_the_one_that_is_simulated(capsys, small, tmp_path) -> None:
    plan = tmp_path / "plan.json"
    assert call(capsys, "place", small(), "--method", "memory-greedy", "--out", str(plan))[0] == 0
    planned = [unit["id"] for unit in json.loads(plan.read_text())["units"]]
    (case,) = simulated(capsys, small(), "--plan", str(plan), "--systems", "muxserve")["cases"]
    assert [line.split()[0] for line in case["units"]] == planned
    one = small(name="other.yaml").replace("small.yaml", "other.yaml")
    Path(one).write_text(Path(one).read_text().replace("name: rare", "name: scarce"))
    assert "'rare'" in refusal(capsys, "simulate", one, "--plan", str(plan))


def test_the_timeline_opens_in_perfetto_and_names_case_unit_model_and_share(
    capsys, small, tmp_path
) -> None:
    file = tmp_path / "jobs.json"
    simulated(capsys, small(), "--timeline", str(file), "--systems", "muxserve,temporal")
    events = json.loads(file.read_text())["traceEvents"]
    names = {e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert {name.split()[1] for name in names} == {"muxserve", "temporal"}
    jobs = [event for event in events if event["ph"] == "X"]
    assert {job["cat"] for job in jobs} == {"prefill", "decode", "mixed"}
    assert {job["name"].split(":")[0] for job in jobs} <= {"chat", "code", "rare"}
    assert all(job["ts"] < 8e6 for job in jobs)
    assert [path.name for path in tmp_path.glob(".*")] == []


@pytest.mark.slow
def test_the_plot_shows_systems_and_models(capsys, small, tmp_path) -> None:
    pytest.importorskip("matplotlib")
    one, many, png = tmp_path / "one.svg", tmp_path / "many.svg", tmp_path / "p.PNG"
    simulated(capsys, small(rate=1.0), "--plot", str(one), "--systems", "muxserve,temporal")
    simulated(
        capsys, small(rate=1.0), "--plot", str(many), "--rate-scale", "1,2", "--systems", "muxserve"
    )
    simulated(capsys, small(rate=1.0), "--plot", str(png), "--systems", "muxserve")
    for word in ("muxserve", "temporal", "chat", "rare", "KV pools: temporal", "End to end"):
        assert f"{word}" in one.read_text()
    assert "SLO scale" in one.read_text()
    assert "requests/s offered" in many.read_text()
    assert png.read_bytes().startswith(b"\x89PNG")


def test_a_cache_makes_the_second_call_the_same_without_simulating(
    capsys, small, tmp_path, monkeypatch
) -> None:
    where = ("--cache", str(tmp_path / "kept"), "--systems", "muxserve")
    first = simulated(capsys, small(), *where)
    monkeypatch.setattr("muxcluster.sim.cases.sweep.run_case", None)
    monkeypatch.setattr("muxcluster.sim.cases.sweep.plan_of", None)
    assert simulated(capsys, small(), *where) == first


def test_a_system_without_a_placement_is_told_and_the_others_run(capsys, small) -> None:
    found = simulated(capsys, small(gpus=1), "--systems", "muxserve,spatial")
    assert [case["system"] for case in found["cases"]] == ["muxserve"]
    assert [each["system"] for each in found["refused"]] == ["spatial"]
    code, out, _ = call(capsys, "simulate", small(gpus=1), *SHORT, "--systems", "muxserve,spatial")
    assert code == 0
    assert "spatial at rate scale 1: " in out
    assert "does not fit" in refusal(capsys, "simulate", small(gpus=1), "--systems", "spatial")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--systems", "vllm"), "round-robin"),
        (("--systems", "muxserve,muxserve"), "twice"),
        (("--systems", "temporal:sharing=off"), "never shares"),
        (("--rate-scale", "1,fast"), "0.5,1,2"),
        (("--rate-scale", "0"), "above 0"),
        (("--rate-scale", "nan"), "above 0"),
        (("--rate-scale", "1,1.0"), "twice"),
        (("--duration", "0"), "--duration"),
        (("--duration", "nan"), "--duration"),
        (("--slo-scale", "-1"), "--slo-scale"),
        (("--alpha", "nan"), "--alpha"),
        (("--alpha", "1000"), "requests/s: expected"),
        (("--rate-scale", "1e-300"), "requests/s: expected"),
        (("--max-rate", "3"), "--alpha"),
        (("--alpha", "1", "--max-rate", "0"), "--max-rate"),
        (("--seed", "-1"), "--seed"),
        (("--trace", "nowhere.jsonl"), "no such file"),
        (("--plan", "nowhere.json"), "no such file"),
        (("--profile", "nowhere.json"), "nowhere.json"),
        (("--plot", "picture.pdf"), ".svg or .png"),
        (("--plot", "no/such/place.svg"), "no such directory"),
        (("--timeline", "no/such/place.json"), "no such directory"),
        (("--timeline", "/"), "is a directory"),
    ],
)
def test_what_is_wrong_is_one_line_and_exit_code_2(capsys, small, options, named) -> None:
    assert named in refusal(capsys, "simulate", small(), *options)


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("", "no known trace"),
        ("hello\n", "no known trace"),
        ('{"timestamp": 3}\n', "no known trace"),
        ('{"muxcluster_workload": 1}\n', "no request in its first"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\nnow,1,2\n", "TIMESTAMP"),
    ],
)
def test_a_trace_that_is_none(capsys, small, tmp_path, content, named) -> None:
    trace = tmp_path / "t.jsonl"
    trace.write_text(content)
    assert named in refusal(capsys, "simulate", small(), *SHORT, "--trace", str(trace))


def test_a_trace_with_a_model_that_the_file_has_not(capsys, small, tmp_path) -> None:
    trace = own_trace(tmp_path / "t.jsonl", ("chat", "cod"))
    err = refusal(capsys, "simulate", small(), *SHORT, "--trace", str(trace))
    assert "'cod' is no model of the configuration; did you mean code?" in err


def test_a_cache_that_cannot_be_written(capsys, small, tmp_path) -> None:
    (tmp_path / "file").write_text("")
    err = refusal(
        capsys,
        "simulate",
        small(),
        *SHORT,
        "--systems",
        "muxserve",
        "--cache",
        str(tmp_path / "file" / "kept"),
    )
    assert "cannot be written" in err


def test_help_has_examples(capsys) -> None:
    code, out, _ = call(capsys, "simulate", "--help")
    assert code == 0
    assert "muxcluster simulate muxcluster.yaml" in out


def test_neither_torch_nor_ray_is_imported(small) -> None:
    script = (
        "import sys; from muxcluster.cli.main import run; "
        f"code = run(['simulate', {small()!r}, '--duration', '2', '--json', '--processes', '1']); "
        "heavy = {'torch', 'ray', 'transformers', 'fastapi', 'triton', 'matplotlib'}; "
        "print(code, sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stderr.strip() == "0 []"
    assert json.loads(done.stdout)["cases"]
