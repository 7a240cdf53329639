"""`muxcluster place` and the entry point around it."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from muxcluster.cli import main as entry
from muxcluster.cli.place import Method, Objective
from muxcluster.core.errors import EngineFailure
from muxcluster.placement.plan import Plan
from muxcluster.placement.planner import METHODS
from muxcluster.placement.problem import Objective as ObjectiveName
from tests.cli.calls import call, refusal

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "muxcluster.yaml"


def test_the_table_names_every_model(capsys) -> None:
    code, out, err = call(capsys, "place", str(EXAMPLE))
    assert (code, err) == (0, "")
    for word in ("chat-13b", "chat-7b", "rare-30b", "prefill SM", "req/s"):
        assert word in out


def test_json_is_the_plan_and_nothing_else(capsys, tmp_path) -> None:
    out_file = tmp_path / "plan.json"
    code, out, err = call(capsys, "place", str(EXAMPLE), "--json", "--out", str(out_file))
    assert (code, err) == (0, "")
    plan = Plan.model_validate_json(out)
    assert {model.name for unit in plan.units for model in unit.models} == {
        "chat-13b",
        "chat-7b",
        "rare-30b",
    }
    assert json.loads(out_file.read_text()) == json.loads(out)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("models: [{name: a, pth: x}]", "models[0].pth: unknown key; did you mean path?"),
        ("models: [{name: a, path: /no/such/model}]", "models[0].path: no such directory"),
        (
            "models: [{name: a, shape: llama-2-70b}]\n"
            "cluster: {nodes: [{name: n, gpus: 1, gpu: L4}]}",
            "models[0]: a does not fit",
        ),
        ("models: [", "not YAML"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(capsys, tmp_path, text, says) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(text)
    code, out, err = call(capsys, "place", str(file), "--out", str(tmp_path / "plan.json"))
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert str(file) in err
    assert says in err
    assert not (tmp_path / "plan.json").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["plase"], "place"),
        (["place"], "give a configuration"),
        (["batch", "plan"], "Missing argument"),
        (["place", "a.yaml", "--jsn"], "--json"),
        (["--wrong"], "--wrong"),
        (["place", str(EXAMPLE), "--out", "/no/such/folder/plan.json"], "cannot be written"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_exit_code_2(capsys, arguments, says) -> None:
    code, _, err = call(capsys, *arguments)
    assert code == 2
    assert err.count("\n") == 1
    assert says in err


def test_overview_version_and_help(capsys) -> None:
    code, out, _ = call(capsys)
    assert code == 2
    assert all(name in out for name in entry.COMMANDS)
    assert call(capsys, "--help")[0] == 0
    code, out, _ = call(capsys, "--version")
    assert code == 0
    assert out.startswith("muxcluster 0.")
    code, out, _ = call(capsys, "place", "--help")
    assert code == 0
    assert "Example: muxcluster place muxcluster.yaml" in out


@pytest.mark.parametrize(
    ("error", "code"), [(EngineFailure("the unit is gone"), 1), (KeyboardInterrupt(), 130)]
)
def test_other_ends_have_their_codes(capsys, monkeypatch, error, code) -> None:
    def command() -> None:
        raise error

    monkeypatch.setattr(entry, "_load", lambda module, name: command)
    assert call(capsys, "place")[0] == code


def test_planning_needs_neither_torch_nor_ray() -> None:
    program = (
        "import sys; from muxcluster.cli.main import run; "
        f"code = run(['place', {str(EXAMPLE)!r}, '--json']); "
        "heavy = {'torch', 'ray', 'transformers', 'fastapi', 'tokenizers'} & set(sys.modules); "
        "sys.exit(f'{code} {heavy}' if heavy or code else 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    Plan.model_validate_json(done.stdout)


def test_every_option_of_place_has_an_example_in_its_help(capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    _, out, _ = call(capsys, "place", "--help")
    text = " ".join(out.split())
    options = ("method", "objective", "time-limit", "json", "out", "plot", "explain", "what-if")
    for option in (*options, "from", "check", "profile", "known"):
        assert f"--{option}" in text
    assert text.count("Example: ") == len(options) + 4 + 1  # one a option, one of the command


def test_the_methods_offered_are_the_planners() -> None:
    assert set(Method) == set(METHODS)
    assert set(Objective) == set(get_args(ObjectiveName))


def test_the_table_shows_load_limit_quota_and_slo(capsys, small) -> None:
    code, out, err = call(capsys, "place", small(gpus=1, rate=0.5))
    assert (code, err) == (0, "")
    plan = Plan.model_validate_json(call(capsys, "place", small(gpus=1, rate=0.5), "--json")[1])
    (unit,) = plan.units
    assert f"{unit.id}  a: 0  1 x A100-80GB, tp 1  mixed  [" in out
    assert "all is served" in out
    for model in unit.models:
        (line,) = (line for line in out.splitlines() if line.startswith(f"  {model.name} "))
        assert f"{model.throughput:.2f} of " in line or model.name == "rare"
        assert re.search(r"GiB, [\d,]+ ", line), "the quota in tokens"
        assert ("(+" in line) == (model.name == "chat"), "only chat has an SLO"
    assert f"{plan.throughput:.2f} of 1.55 req/s (100%)" in out
    assert "idle GPUs: none" in out
    assert re.search(r"headroom: all rates can grow to [\d.]+ times these; then a-0 is first", out)
    assert re.search(r"no plan has more than [\d.]+ req/s; this one has as much", out)
    assert "below their rate: none" in out


def test_batch_work_and_its_cost_are_told(capsys, small) -> None:
    path = small(gpus=1, rate=1.0)
    change = ("--what-if", "batch:chat=20e6")
    code, out, err = call(capsys, "place", path, "--time-limit", "0", *change)
    assert (code, err) == (0, "")
    (row,) = (line for line in out.splitlines() if line.startswith("  chat "))
    assert "2e+07  2e+07 (100%)" in row
    assert re.search(r"-> \d+ ms \(\+\d+%\)$", row), "its time per token, and the margin to its SLO"
    (unit,) = (line for line in out.splitlines() if line.startswith("a-0  density "))
    capacity = float(re.search(r"can do ([\d.]+) times", unit)[1])
    assert capacity > 1
    (line,) = (line for line in out.splitlines() if line.startswith("batch work: "))
    alone, beside = map(float, re.search(r"headroom ([\d.]+) -> ([\d.]+) while", line).groups())
    assert 1 <= beside <= alone
    text = call(capsys, "place", path, "--json", "--time-limit", "0", *change)[1]
    (found,) = Plan.model_validate_json(text).units
    tokens = {model.name: model.backlog_tokens_per_s for model in found.models}
    assert tokens == {"chat": pytest.approx(20e6 / 86400), "code": None, "rare": None}
    without = call(capsys, "place", path, "--time-limit", "0")[1]
    assert "batch work" not in without and "density" not in without


def test_an_overloaded_cluster_says_what_limits_and_who_is_short(capsys, small) -> None:
    _, out, _ = call(capsys, "place", small(gpus=1, rate=500.0))
    assert "limited by " in out
    (line,) = (line for line in out.splitlines() if line.startswith("below their rate: "))
    assert "chat (" in line


def test_a_check_shows_the_plan_beside_its_simulation(capsys, small) -> None:
    code, out, err = call(capsys, "place", small(), "--check", "--time-limit", "0")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    (heading,) = (line for line in lines if line.startswith("simulated: "))
    table = lines[lines.index(heading) + 1 :]
    assert table[0].split()[:2] == ["model", "req/s"]
    for row, name in zip(table[1:], ("all", "chat", "code", "rare"), strict=False):
        cells = row.split()
        assert cells[0] == name
        planned, simulated = float(cells[1]), float(cells[3])
        assert simulated == pytest.approx(planned, rel=0.3) or name == "rare"


@pytest.mark.slow
def test_a_check_leaves_standard_output_to_the_plan(capsys, small) -> None:
    code, out, err = call(capsys, "place", small(), "--check", "--json", "--time-limit", "0")
    assert code == 0
    Plan.model_validate_json(out)
    assert "simulated: " in err


def test_the_lane_of_each_unit_and_what_keeps_its_batch_small(capsys, tmp_path) -> None:
    path = tmp_path / "lanes.yaml"
    path.write_text(
        "models:\n"
        "  - {name: a, shape: llama-2-7b, rate: 50, max_model_len: 2048, max_seqs: 8}\n"
        "  - {name: b, shape: llama-2-13b, rate: 0.1, max_model_len: 2048}\n"
        "cluster: {nodes: [{name: n, gpus: 1, gpu: A100-80GB}]}\n"
    )
    out = call(capsys, "place", str(path))[1]
    assert "tp 1  mixed (can share SMs)  [" in out
    assert "8 rows (max_seqs) of a" in out
    assert "headroom: none; n-0 serves " in out
    path.write_text(path.read_text().replace("gpus: 1", "gpus: 2"))
    assert "tp 1  mixed  [" in call(capsys, "place", str(path), "--method", "spatial")[1]
    path.write_text(path.read_text().replace("rate: 50", "rate: 0.1").replace("gpus: 2", "gpus: 1"))
    assert "tp 1  adbs on shared SMs  [" in call(capsys, "place", str(path))[1]


def test_idle_gpus_are_listed_with_the_reason(capsys, tmp_path) -> None:
    path = tmp_path / "idle.yaml"
    path.write_text(
        "models: [{name: big, shape: llama-2-70b, rate: 1, max_model_len: 2048}]\n"
        "cluster: {nodes: [{name: h, gpus: 3, gpu: H100}, {name: l, gpus: 2, gpu: L4}]}\n"
    )
    out = call(capsys, "place", str(path))[1]
    assert "idle GPUs: h: 2: no model fits there; nearest is big: " in out
    assert "idle GPUs: l: 0-1: no model fits there; nearest is big: " in out
    out = call(capsys, "place", str(path), "--objective", "fewest-gpus")[1]
    assert "idle GPUs: h: 2: the objective asks for the fewest GPUs" in out


@pytest.mark.parametrize(
    ("models", "nodes", "says"),
    [
        (  # no GPUs are missing: it is the heads
            "[{name: a, shape: llama-30b, dtype: float32, max_model_len: 2048}]",
            "{gpus: 8, gpu: L4}",
            r"models\[0\]: a does not fit: 121.18 GiB of weights and .* of buffers on 4 x L4, .* "
            r"usable; 52 heads cannot be split over 8 GPUs \(.* GiB missing\)",
        ),
        (  # no GPUs are missing: it is the backend
            "[{name: a, shape: falcon-7b, dtype: float32}]",
            "{gpus: 2, gpu: L4}",
            r"on 1 x L4, 18.30 usable; models of type 'falcon' run on the dense backend, so it "
            r"cannot be split over 2 GPUs \(.* GiB missing\)",
        ),
        (  # each model fits alone: it is the cluster
            "[{name: a, shape: llama-2-13b}, {name: b, shape: llama-2-13b},"
            " {name: c, shape: llama-2-13b}]",
            "{gpus: 1, gpu: A100-80GB}",
            r"models: 3 models do not fit together: 7\d.* GiB of weights and tables alone on "
            r"1 GPU\(s\), 69.69 usable \(.* GiB missing\)",
        ),
        (  # memory is enough, but all GPUs are taken and the other model's heads cannot be split
            "[{name: a, shape: llama-65b, max_model_len: 1024},"
            " {name: b, shape: qwen2.5-1.5b, max_model_len: 1024}]",
            "{gpus: 8, gpu: L4}",
            "models: 2 models do not fit together: .* leave no GPUs for b, and none of 1 takes it "
            "too: 12 heads cannot be split over 8 GPUs",
        ),
    ],
)
def test_a_refusal_has_the_true_reason(capsys, tmp_path, models, nodes, says) -> None:
    path = tmp_path / "short.yaml"
    path.write_text(f"models: {models}\ncluster: {{nodes: [{nodes.replace('{', '{name: n, ')}]}}\n")
    err = refusal(capsys, "place", str(path))
    assert re.search(says, err), err


def test_a_table_that_is_piped_is_not_cut(capsys, small, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    narrow = call(capsys, "place", small())[1]
    monkeypatch.setenv("COLUMNS", "300")
    assert narrow.splitlines()[1] == call(capsys, "place", small())[1].splitlines()[1]
    assert narrow.isascii()


@pytest.mark.parametrize("objective", list(Objective))
def test_objectives(capsys, small, objective) -> None:
    code, out, err = call(capsys, "place", small(gpus=4), "--objective", objective, "--json")
    assert (code, err) == (0, "")
    plan = Plan.model_validate_json(out)
    assert plan.objective == objective
    if objective == "fewest-gpus":
        assert plan.score == sum(len(unit.gpus) for unit in plan.units) < 4


def test_the_objective_of_the_file(capsys, small) -> None:
    more = "policy: {objective: weighted}\n"
    plan = Plan.model_validate_json(call(capsys, "place", small(more=more), "--json")[1])
    assert plan.objective == "weighted"
    out = call(capsys, "place", small(more=more), "--objective", "goodput", "--json")[1]
    assert Plan.model_validate_json(out).objective == "goodput"


@pytest.mark.parametrize("method", [name for name in METHODS if name != "compat"])
def test_methods_print_the_plan_alone(capsys, small, method) -> None:
    code, out, err = call(
        capsys, "place", small(gpus=4), "--method", method, "--json", "--time-limit", "2"
    )
    assert (code, err) == (0, "")
    assert Plan.model_validate_json(out).method == method


def test_explanations_and_differences_leave_stdout_to_the_plan(capsys, small) -> None:
    asked = ("--explain", "chat", "--what-if", "rate:code=2", "--json")
    code, out, err = call(capsys, "place", small(), *asked)
    assert code == 0
    plan = Plan.model_validate_json(out)
    assert plan.throughput == pytest.approx(6.05)
    assert "chat is on " in err
    assert "5.05 -> 6.05 req/s" in err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--method", "best"], "'greedy'"),
        (["--objective", "money"], "'throughput'"),
        (["--time-limit", "-1"], "--time-limit"),
        (["--time-limit", "nan"], "--time-limit"),
        (["--time-limit", "soon"], "--time-limit"),
        (["--explain", "chatt"], "did you mean chat?"),
        (["--out", "."], "cannot be written"),
        (["--profile", "/no/such/file.json"], "/no/such/file.json: cannot be read"),
        (["--profile", "."], "cannot be read"),
        (["--from", "/no/such/plan.json"], "/no/such/plan.json: no such file"),
        (["--plot", "plan.gif"], ".svg or .png"),
        (["--plot", "/no/such/folder/plan.svg"], "cannot be written"),
        (["--what-if", "more"], "expected add:NAME"),
        (["--explain"], "requires an argument"),
    ],
)
def test_bad_options_of_place(capsys, small, arguments, says) -> None:
    assert says in refusal(capsys, "place", small(), *arguments)


def test_a_broken_profile_is_named_with_its_key(capsys, small, tmp_path) -> None:
    (tmp_path / "p.json").write_text('{"version": 1}')
    assert "p.json: gpu: " in refusal(
        capsys, "place", small(), "--profile", str(tmp_path / "p.json")
    )
    file = Path(small())
    file.write_text(file.read_text().replace("nodes: [", "profiles: [p.json], nodes: ["))
    err = refusal(capsys, "place", str(file))
    assert "cluster.profiles[0]: " in err
    assert "gpu" in err


def test_out_to_a_device_and_through_a_link(capsys, small, tmp_path) -> None:
    assert call(capsys, "place", small(), "--out", "/dev/null")[0] == 0
    assert not Path("/dev/null").is_file()
    (tmp_path / "link.json").symlink_to(tmp_path / "target.json")
    assert call(capsys, "place", small(), "--out", str(tmp_path / "link.json"))[0] == 0
    assert (tmp_path / "link.json").is_symlink()
    assert Plan.read(tmp_path / "target.json").units
    assert not list(tmp_path.glob("*.partial"))


def test_a_full_disk_is_one_line(small) -> None:
    with Path("/dev/full").open("wb") as full:
        command = [sys.executable, "-m", "muxcluster.cli.main", "place", small()]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, cwd=ROOT, check=False)
    assert done.returncode == 1
    assert done.stderr == b"muxcluster: the plan cannot be printed: No space left on device\n"


def test_what_is_parked_is_shown_with_its_cost(capsys, tmp_path) -> None:
    path = tmp_path / "parked.yaml"
    rows = "\n".join(
        f"  - {{name: m{index}, shape: llama-2-13b, rate: 0.01, max_model_len: 2048, "
        "residency: on-demand}"
        for index in range(5)
    )
    nodes = "cluster: {nodes: [{name: a, gpus: 1, gpu: A100-80GB}], host_memory_gib: 200}"
    path.write_text(f"models:\n{rows}\n{nodes}\n")
    code, out, err = call(capsys, "place", str(path), "--time-limit", "0")
    assert (code, err) == (0, "")
    assert "2 of 5 models that may be parked" in out
    assert "unproven: no GPU engine moves weights yet" in out
    assert out.count("on-demand: ") == 5
    code, out, _ = call(capsys, "place", str(path), "--time-limit", "0", "--json")
    (unit,) = json.loads(out)["units"]
    assert unit["resident_bytes"] > 0
    assert all(model["wakes_per_h"] > 0 for model in unit["models"])
    assert all(model["waking_p95_s"] >= model["waking_p50_s"] >= 0 for model in unit["models"])
    path.write_text(f"models:\n{rows}\n{nodes.replace('200', '100')}\n")
    code, _, err = call(capsys, "place", str(path), "--time-limit", "0")
    assert code == 2
    assert "host memory" in err
