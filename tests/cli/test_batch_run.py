"""`muxcluster batch run`: answers of real tiny models, orders, interruptions, refusals."""

import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from muxcluster.offline.process.side import SideProcess
from muxcluster.sim.batch.together import OrderedJob, Together
from muxcluster.sim.core.unit import SimUnit
from muxcluster.text.tokenizer import Tokenizer
from tests.cli.batches import (
    FAMILIES,
    OUTPUT_TOKENS,
    START_TIMEOUT_S,
    build_models,
    num_ended,
    prompts,
    started,
    texts,
    wait_until_ended,
    write_config,
    write_job,
)
from tests.cli.calls import call, refusal
from tests.engine.children.preloaded import fast_children, preloaded
from tests.oracles import NEAR_TIE, GreedyOracle

__all__ = ["fast_children", "preloaded"]

pytestmark = pytest.mark.usefixtures("fast_children")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return build_models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def config(models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_config(tmp_path_factory.mktemp("config") / "two.yaml", models)


def _ran(capsys, *arguments: str) -> Mapping[str, Any]:
    code, out, err = call(capsys, "batch", "run", *arguments, "--json")
    assert code == 0, err
    content: Mapping[str, Any] = json.loads(out)
    return content


def test_answers_are_hugging_faces_in_every_order(
    capsys, tmp_path: Path, config: str, models: dict[str, Path]
) -> None:
    asked = prompts(24)
    file = write_job(tmp_path / "in.jsonl", asked)
    answers = {}
    in_turn = []
    for order in ("auto", "fcfs", "random"):
        output = tmp_path / order / "out.jsonl"
        output.parent.mkdir()
        said = _ran(capsys, file, "-o", str(output), "--config", config, "--order", order)
        assert (said["total"], said["completed"], said["failed"]) == (24, 24, 0)
        assert said["output_tokens"] == 24 * OUTPUT_TOKENS
        assert said["prompt_tokens"] == sum(len(prompt) for _, prompt in asked)
        if order != "auto":
            assert said["orders"] == dict.fromkeys(FAMILIES, order)
        assert sorted(path.name for path in output.parent.iterdir()) == ["out.jsonl"]
        answers[order] = texts(output)
        in_turn.append(said["in_turn"])
    assert all(sorted(models) == sorted(FAMILIES) for each in in_turn for models in each)
    assert answers["auto"] == answers["fcfs"] == answers["random"]
    oracles = {name: GreedyOracle(path) for name, path in models.items()}
    tokenizers = {name: Tokenizer.load(path) for name, path in models.items()}
    num_near_ties = 0
    for number, (model, prompt) in enumerate(asked):
        expected, gaps = oracles[model].continue_(prompt, OUTPUT_TOKENS)
        text = tokenizers[model].decode(expected, True)
        if _whole(answers["auto"][f"r-{number}"]) != _whole(text):
            assert min(gaps) < NEAR_TIE
            num_near_ties += 1
    assert num_near_ties <= 2


@pytest.mark.parametrize("joint_s", [1.0, 3.0])
def test_models_take_turns_where_all_at_once_is_predicted_to_lose(
    capsys, tmp_path: Path, config: str, monkeypatch: pytest.MonkeyPatch, joint_s: float
) -> None:
    def predicted(unit: SimUnit, jobs: Mapping[str, OrderedJob], num_sampled: int) -> Together:
        assert set(jobs) == set(FAMILIES) == set(unit.models)
        return Together(joint_s, dict.fromkeys(jobs, 1.0))

    monkeypatch.setattr("muxcluster.batch.plan.piece.compare_together", predicted)
    monkeypatch.setattr(SideProcess, "run", _run_here)
    asked = prompts(12)
    file, output = write_job(tmp_path / "in.jsonl", asked), tmp_path / "out.jsonl"
    said = _ran(capsys, file, "-o", str(output), "--config", config, "--order", "dfs")
    assert (said["completed"], said["failed"]) == (12, 0)
    in_turn = joint_s > 2.0
    assert [sorted(models) for models in said["in_turn"]] == [sorted(FAMILIES)] * in_turn
    # answers stand in the order in which they ended
    ended = [asked[int(key.removeprefix("r-"))][0] for key in texts(output)]
    num_changes = sum(a != b for a, b in pairwise(ended))
    assert num_changes == 1 if in_turn else num_changes >= 1


async def _run_here(_: SideProcess, work: Callable[..., Any], *args: Any) -> Any:
    """Plan in this process, where a test can see it."""
    return work(*args)


def _whole(text: str) -> str:
    """Without what is half a character where prompt and output meet."""
    return text.strip("\ufffd")


@pytest.mark.slow
def test_interrupted_it_goes_on_where_it_stopped(capsys, tmp_path: Path, config: str) -> None:
    count = 200
    file = write_job(tmp_path / "in.jsonl", prompts(count, seed=1))
    output, state = tmp_path / "out.jsonl", tmp_path / "out.jsonl.batch"
    arguments = (file, "-o", str(output), "--config", config, "--order", "dfs")
    process = started(*arguments)
    assert wait_until_ended(process, state, 20)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=START_TIMEOUT_S)
    assert process.returncode == 130, err
    assert "lines have ended; the same command goes on from there" in err
    num_before = num_ended(state)
    assert 20 <= num_before < count
    said = _ran(capsys, *arguments)
    assert (said["total"], said["completed"]) == (count, count)
    assert said["output_tokens"] == (count - num_before) * OUTPUT_TOKENS
    assert len(texts(output)) == count
    assert not state.exists()


def test_wrong_lines_are_told_and_the_rest_runs(capsys, tmp_path: Path, config: str) -> None:
    file = tmp_path / "in.jsonl"
    write_job(file, prompts(2))
    picture = {"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}
    chat = {"model": "llama-a", "messages": [{"role": "user", "content": [picture]}]}
    long = {"model": "llama-a", "prompt": [5] * 5000}
    with file.open("a") as added:
        for name, url, body in (
            ("picture", "/v1/chat/completions", chat),
            ("long", "/v1/completions", long),
            ("r-1", "/v1/completions", long),
        ):
            entry = {"custom_id": name, "method": "POST", "url": url, "body": body}
            added.write(json.dumps(entry) + "\n")
    said = _ran(capsys, str(file), "-o", str(tmp_path / "out.jsonl"), "--config", config)
    assert (said["completed"], said["failed"]) == (2, 3)
    assert sorted(texts(tmp_path / "out.jsonl")) == ["r-0", "r-1"]
    lines = (tmp_path / "out.errors.jsonl").read_text().splitlines()
    told = {entry["line"]: entry for entry in map(json.loads, lines)}
    assert sorted(told) == [3, 4, 5]
    codes = [told[line]["response"]["body"]["error"]["code"] for line in (3, 4)]
    assert codes == ["unsupported_parameter", "context_length_exceeded"]
    assert told[5]["custom_id"] is None


def test_each_prompt_is_tokenised_once(
    capsys, tmp_path: Path, config: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: Counter[str] = Counter()
    encode = Tokenizer.encode

    def counted(tokenizer: Tokenizer, text: str, *args: Any, **options: Any) -> list[int]:
        seen[text] += 1
        return encode(tokenizer, text, *args, **options)

    file = tmp_path / "in.jsonl"
    with file.open("w") as lines:
        for number, (model, prompt) in enumerate(prompts(12)):
            body = {"model": model, "prompt": f"{number}: {prompt}", "max_tokens": 2}
            fields = {"method": "POST", "url": "/v1/completions", "body": body}
            lines.write(json.dumps({"custom_id": f"r-{number}", **fields}) + "\n")
    monkeypatch.setattr(Tokenizer, "encode", counted)
    monkeypatch.setattr(SideProcess, "run", _run_here)
    said = _ran(capsys, str(file), "-o", str(tmp_path / "out.jsonl"), "--config", config)
    assert said["completed"] == len(seen) == seen.total() == 12


def test_a_job_without_a_request_fails(capsys, tmp_path: Path, config: str) -> None:
    file = tmp_path / "in.jsonl"
    file.write_text("{}\n")
    output = tmp_path / "out.jsonl"
    code, out, _ = call(capsys, "batch", "run", str(file), "-o", str(output), "--config", config)
    assert code == 1
    assert "no line of the input file" in out
    assert not output.exists()
    assert "custom_id" in (tmp_path / "out.errors.jsonl").read_text()


def test_refusals(capsys, tmp_path: Path, config: str) -> None:
    file, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    base = ("batch", "run", str(file), "-o", str(output), "--config", config)
    assert "in.jsonl: cannot be read: No such file" in refusal(capsys, *base)
    write_job(file, prompts(1))
    assert "--order lifo: expected one of auto" in refusal(capsys, *base, "--order", "lifo")
    output.write_text("mine")
    assert "out.jsonl: is there already" in refusal(capsys, *base)
    assert output.read_text() == "mine"


@pytest.mark.slow
def test_it_imports_neither_ray_nor_torch(tmp_path: Path, config: str) -> None:
    file, output = write_job(tmp_path / "in.jsonl", prompts(2)), tmp_path / "out.jsonl"
    code = (
        "import sys; from muxcluster.cli.main import run; "
        f"code = run(['batch', 'run', {file!r}, '-o', {str(output)!r}, '--config', {config!r}]); "
        "sys.exit(code or any(name in sys.modules for name in ('ray', 'fastapi', 'torch')))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=300)
    assert len(texts(output)) == 2


def test_lines_with_constraints(capsys, tmp_path: Path, config: str) -> None:
    """Those with a wrong one are in the errors, with what is wrong."""
    wanted = {"good": {"guided_choice": ["yes", "no"]}, "bad": {"guided_json": {"type": "objct"}}}
    file, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    with file.open("w") as lines:
        for name, constraint in wanted.items():
            body = {"model": next(iter(FAMILIES)), "prompt": "x", "max_tokens": 9, **constraint}
            entry = {"custom_id": name, "method": "POST", "url": "/v1/completions", "body": body}
            lines.write(json.dumps(entry) + "\n")
    said = _ran(capsys, str(file), "-o", str(output), "--config", config)
    assert (said["completed"], said["failed"]) == (1, 1)
    (line,) = output.read_text().splitlines()
    assert json.loads(line)["response"]["body"]["choices"][0]["text"] in ("yes", "no")
    assert "guided_json.type" in (tmp_path / "out.errors.jsonl").read_text()
