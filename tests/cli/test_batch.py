"""`muxcluster batch plan`: its table and JSON, the choice it makes, and every refusal."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bench.traces.batchmix import Kind, mixed_job
from muxcluster.offline.order.orders import ORDERS
from tests.cli.calls import call, refusal

CONFIG = """
models:
  - {name: chat, shape: llama-3.1-8b, rate: 1.0, max_model_len: 2048, max_seqs: 128}
cluster: {nodes: [{name: a, gpus: 1, gpu: A100-80GB}]}
policy: {kv_gb: 2}
"""
KINDS = [Kind(0.6, 6, 300, 80, 10), Kind(0.4, 1, 0, 60, 60)]


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "one.yaml"
    path.write_text(CONFIG)
    return str(path)


@pytest.fixture
def job(tmp_path: Path) -> str:
    """100 requests; the output length of every second one is known."""
    made = mixed_job(KINDS, 100, np.random.default_rng(1))
    path = tmp_path / "job.jsonl"
    with path.open("w") as file:
        for i, output in enumerate(made.output_tokens.tolist()):
            ids = made.ids[made.offsets[i] : made.offsets[i + 1]].tolist()
            name = "output_tokens" if i % 2 else "max_tokens"
            file.write(json.dumps({"prompt": ids, name: output}) + "\n")
    return str(path)


def _planned(capsys, *arguments: str) -> dict:
    code, out, err = call(capsys, "batch", "plan", *arguments, "--json")
    assert (code, err) == (0, "")
    return json.loads(out)


def test_the_plan_is_drawn(capsys, config: str, job: str, tmp_path: Path) -> None:
    plot = tmp_path / "job.svg"
    arguments = (job, "--config", config, "--order", "dfs", "--plot", str(plot))
    assert call(capsys, "batch", "plan", *arguments)[0] == 0
    assert "chat on a-0, order dfs" in plot.read_text()
    said = refusal(capsys, "batch", "plan", *arguments[:-1], "job.pdf")
    assert "written as .svg or .png" in said


def test_auto_takes_what_it_predicts_to_be_fastest(capsys, config: str, job: str) -> None:
    found = _planned(capsys, job, "--config", config)
    spans = {name: each["makespan_s"] for name, each in found["orders"].items()}
    assert set(spans) == set(ORDERS)
    assert spans[found["order"]] == min(spans.values())
    assert list(spans.values()) == sorted(spans.values())
    outputs = {each["output_tokens"] for each in found["orders"].values()}
    assert outputs == {found["job"]["output_tokens"]}
    assert found["sample"] == found["job"]
    assert (found["num_known_outputs"], found["num_too_long"]) == (50, 0)


def test_the_table_tells_of_the_job_and_ends_with_the_order(capsys, config: str, job: str) -> None:
    code, out, err = call(
        capsys, "batch", "plan", job, "--config", config, "--order", "dfs", "--lane", "mixed"
    )
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith("100 requests for chat: ")
    assert "of the prompts shared, density " in lines[1] and lines[1].endswith("lane mixed")
    assert lines[2].startswith("output lengths of 50 are not known")
    assert lines[3].split()[:2] == ["order", "makespan"]
    assert lines[4].startswith("dfs ")
    assert lines[5:] == ["order: dfs"]


def test_one_model_is_predicted_side_by_side_too(capsys, config: str, job: str) -> None:
    found = _planned(capsys, job, "--config", config)
    (other,) = found["other_ways"]
    assert (found["lane"], other["lane"], other["shares_sms"]) == ("mixed", "adbs", True)
    assert other["order"] in ORDERS
    assert other["makespan_s"] > 0
    code, out, err = call(capsys, "batch", "plan", job, "--config", config)
    assert (code, err) == (0, "")
    is_faster = other["makespan_s"] < found["makespan_s"]
    assert ("side by side" in out.splitlines()[-1]) is is_faster


def test_a_lane_that_was_asked_for_has_no_others(capsys, config: str, job: str) -> None:
    arguments = (job, "--config", config, "--order", "dfs", "--lane", "mixed")
    assert _planned(capsys, *arguments)["other_ways"] == []


def _three(tmp_path: Path) -> str:
    path = tmp_path / "three.yaml"
    path.write_text(CONFIG.replace("rate: 1.0", "rate: 60.0").replace("gpus: 1", "gpus: 3"))
    return str(path)


def test_several_units_divide_the_job(capsys, tmp_path: Path, config: str, job: str) -> None:
    found = _planned(capsys, job, "--config", _three(tmp_path), "--order", "batchllm")
    units = found["units"]
    assert len(units) == found["num_units"] == 3
    for key in ("num_requests", "prompt_tokens", "output_tokens"):
        assert sum(unit[key] for unit in units) == found["job"][key]
    for key in ("compute_s", "memory_s"):
        used = [unit[key] for unit in units]
        assert max(used) < 1.1 * sum(used) / 3
        # families stay together, so what is computed twice is next to nothing
        assert sum(used) == pytest.approx(found["job"][key], rel=1e-3)
    spans = [unit["makespan_s"] for unit in units]
    assert found["makespan_s"] == max(spans)
    assert units[0]["makespan_s"] == found["orders"]["batchllm"]["makespan_s"]
    assert found["saved_share"] == pytest.approx(1.0, abs=0.01)
    one = _planned(capsys, job, "--config", config, "--order", "batchllm")
    assert max(spans) < one["makespan_s"] == one["units"][0]["makespan_s"]


def test_the_table_has_a_line_a_unit(capsys, tmp_path: Path, job: str) -> None:
    code, out, err = call(
        capsys, "batch", "plan", job, "--config", _three(tmp_path), "--order", "dfs"
    )
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert "the first of 3 and its part of the job" in lines[1]
    assert lines[5].startswith("divided over 3 units: ")
    assert lines[6].split()[:2] == ["unit", "requests"]
    assert sum(int(line.split()[1]) for line in lines[7:10]) == 100
    assert lines[10:] == ["order: dfs"]


def test_units_left_without_a_request_are_not_asked(capsys, tmp_path: Path) -> None:
    path = tmp_path / "small.jsonl"
    path.write_text('{"prompt": "a", "output_tokens": 3}\n{"prompt": "b", "output_tokens": 3}\n')
    found = _planned(capsys, str(path), "--config", _three(tmp_path), "--order", "fcfs")
    assert [unit["num_requests"] for unit in found["units"]] == [1, 1]


def test_a_sample_stands_for_the_whole_job(capsys, config: str, job: str) -> None:
    whole = _planned(capsys, job, "--config", config, "--order", "fcfs")
    part = _planned(capsys, job, "--config", config, "--order", "fcfs", "--sample", "50")
    assert 30 <= part["sample"]["num_requests"] <= 70
    found = part["orders"]["fcfs"]
    assert found["makespan_s"] > 1.2 * found["sample_makespan_s"]
    assert 0.5 < found["makespan_s"] / whole["orders"]["fcfs"]["makespan_s"] < 2.5


def test_bad_input_is_refused_in_one_line(capsys, config: str, job: str, small) -> None:
    base = ("batch", "plan", job, "--config")
    assert "--order lifo: expected one of auto, " in refusal(
        capsys, *base, config, "--order", "lifo"
    )
    assert "--lane fast: expected one of " in refusal(capsys, *base, config, "--lane", "fast")
    assert "needed: one of chat, code, rare" in refusal(capsys, *base, small())
    two = Path(job).with_name("two.jsonl")
    two.write_text('{"model": "cod", "prompt": "b"}\n')
    several = ("batch", "plan", str(two), "--config", small())
    assert "two.jsonl:1: model: no model 'cod' in " in refusal(capsys, *several)
    two.write_text('{"prompt": "c"}\n')
    assert "needed: one of chat, code, rare" in refusal(capsys, *several)
    assert "did you mean chat" in refusal(capsys, *base, config, "--model", "cht")
    assert "none.yaml" in refusal(capsys, *base, "none.yaml")
    missing = ("batch", "plan", "missing.jsonl", "--config", config)
    assert "missing.jsonl" in refusal(capsys, *missing)
    assert "'runn'" in refusal(capsys, "batch", "runn", job, "--config", config)
    Path(job).write_text('{"prompt": 7}\n{"prompt": 8}\n')
    assert "job.jsonl:1: prompt: expected text" in refusal(capsys, *base, config)
    Path(job).write_text("")
    assert "no request" in refusal(capsys, *base, config)


BAD = (
    b"{",
    b"",
    b"\xff\xfe",
    b"[" * 5000,
    b'{"prompt": 7}',
    b'{"prompt": [1], "max_tokens": 0}',
    b'{"prompt": [1], "model": "other"}',
)


def test_bad_lines_are_told_of_and_the_rest_is_planned(capsys, config: str, job: str) -> None:
    path = Path(job)
    expected = _planned(capsys, job, "--config", config, "--order", "dfs")
    assert expected["bad_lines"] == {"num": 0, "first": []}
    good = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join([*BAD[:4], *good[:50], *BAD[4:], *good[50:]]) + b"\n")
    found = _planned(capsys, job, "--config", config, "--order", "dfs")
    bad = found.pop("bad_lines")
    expected.pop("bad_lines")
    assert found == expected
    assert bad["num"] == len(BAD)
    reasons = ("1: not JSON", "2: not JSON", "3: not UTF-8")
    assert len(bad["first"]) == len(reasons)
    for told, reason in zip(bad["first"], reasons, strict=True):
        assert told.startswith(f"{job}:{reason}")
    code, out, err = call(capsys, "batch", "plan", job, "--config", config, "--order", "dfs")
    assert code == 0 and out.splitlines()[-1] == "order: dfs"
    assert err.splitlines()[0] == "muxcluster: 7 lines are no requests and are left out:"
    assert err.splitlines()[-1] == "  and 4 more"
    found = _planned(capsys, job, "--config", config, "--order", "dfs", "--model", "chat")
    assert found["bad_lines"] == bad


def test_it_needs_neither_torch_nor_ray(config: str, job: str) -> None:
    code = (
        "import sys; from muxcluster.cli.main import run; "
        f"code = run(['batch', 'plan', {job!r}, '--config', {config!r}, '--order', 'dfs']); "
        "sys.exit(code or any(name in sys.modules for name in ('torch', 'ray', 'transformers')))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=300)


def test_plans_learn_lengths_unless_they_are_told_them(capsys, config: str, job: str) -> None:
    asked = (job, "--config", config, "--order", "blend")
    found = {name: _planned(capsys, *asked, "--lengths", name) for name in ("sampled", "known")}
    assert _planned(capsys, *asked) == found["sampled"]
    assert found["sampled"]["job"] == found["known"]["job"]
    assert found["sampled"]["orders"] != found["known"]["orders"]


def test_lengths_are_sampled_or_known(capsys, config: str, job: str) -> None:
    code, _, err = call(capsys, "batch", "plan", job, "--config", config, "--lengths", "guessed")
    assert code == 2
    assert "--lengths guessed: expected one of sampled, known" in " ".join(err.split())


TWO = """
models:
  - {name: chat, shape: llama-3.1-8b, rate: 1.0, max_model_len: 2048, max_seqs: 128}
  - {name: code, shape: llama-2-7b, rate: 1.0, max_model_len: 2048, max_seqs: 128}
cluster: {nodes: [{name: a, gpus: 1, gpu: A100-80GB}]}
policy: {kv_gb: 8}
"""


@pytest.fixture
def of_two(tmp_path: Path) -> tuple[str, str]:
    """A job of 40 long answers by one model and 60 long prompts for another, and their config."""
    config, path = tmp_path / "two.yaml", tmp_path / "two.jsonl"
    config.write_text(TWO)
    with path.open("w") as file:
        for model, kind, count in (
            ("chat", Kind(1.0, 1, 0, 50, 200), 40),
            ("code", Kind(1.0, 1, 0, 1000, 8), 60),
        ):
            made = mixed_job([kind], count, np.random.default_rng(1))
            for i, output in enumerate(made.output_tokens.tolist()):
                ids = made.ids[made.offsets[i] : made.offsets[i + 1]].tolist()
                line = {"model": model, "prompt": ids, "output_tokens": output}
                file.write(json.dumps(line) + "\n")
    return str(path), str(config)


def test_models_that_share_a_unit_are_predicted_at_once_too(
    capsys, of_two: tuple[str, str]
) -> None:
    path, config = of_two
    found = _planned(capsys, path, "--config", config, "--order", "dfs", "--lane", "adbs")
    jobs = {model: each["job"]["num_requests"] for model, each in found["models"].items()}
    assert jobs == {"chat": 40, "code": 60}
    (shared,) = found["shared"]
    assert shared["models"] == ["chat", "code"]
    apart = sum(each["makespan_s"] for each in found["models"].values())
    assert shared["one_after_other_s"] == pytest.approx(apart)
    assert shared["joint_s"] < apart and shared["is_joint"]


def test_the_last_line_says_whether_to_run_them_at_once(capsys, of_two: tuple[str, str]) -> None:
    path, config = of_two
    code, out, err = call(
        capsys, "batch", "plan", path, "--config", config, "--order", "dfs", "--lane", "adbs"
    )
    assert (code, err) == (0, "")
    last = out.splitlines()[-1]
    assert last.startswith("chat, code share a-0: all at once ")
    assert last.endswith(": run them at once")


def test_bad_lines_of_a_job_for_several_models(capsys, of_two: tuple[str, str]) -> None:
    path, config = of_two
    expected = _planned(capsys, path, "--config", config, "--order", "dfs")
    with Path(path).open("a") as file:
        file.write('{"prompt": [1]}\n{"model": "cod", "prompt": [1]}\nnonsense\n')
    found = _planned(capsys, path, "--config", config, "--order", "dfs")
    bad = found.pop("bad_lines")
    assert found == {key: value for key, value in expected.items() if key != "bad_lines"}
    assert bad["num"] == 3
    told = " ".join(bad["first"])
    assert "no model 'cod' in " in told and "did you mean code?" in told
    assert "101: model: missing, and others name several" in told


def test_a_file_that_names_one_model_needs_no_option(capsys, of_two: tuple[str, str]) -> None:
    path, config = of_two
    lines = Path(path).read_text().splitlines()
    Path(path).write_text("\n".join(lines[:40]) + "\n")
    assert _planned(capsys, path, "--config", config, "--order", "dfs")["model"] == "chat"
