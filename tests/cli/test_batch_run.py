"""`muxcluster batch run`: answers of real tiny models, orders, interruptions, refusals."""

import json
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from muxcluster.demo.models import build_model
from muxcluster.text.tokenizer import Tokenizer
from tests.cli.calls import call, refusal
from tests.oracles import NEAR_TIE, GreedyOracle

FAMILIES = {"llama-a": "llama", "qwen-b": "qwen3"}
OUTPUT_TOKENS = 6
START_TIMEOUT_S = 120.0


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    return {
        name: build_model(root / name, family, seed=seed)
        for seed, (name, family) in enumerate(FAMILIES.items())
    }


@pytest.fixture(scope="module")
def config(models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("config") / "two.yaml"
    listed = [
        {"name": name, "path": str(path), "prompt_tokens": 20, "output_tokens": OUTPUT_TOKENS}
        for name, path in models.items()
    ]
    content = {"models": listed, "policy": {"sharing": "always", "num_threads": 1}}
    file.write_text(yaml.safe_dump(content))
    return str(file)


def _prompts(count: int, seed: int = 0) -> list[tuple[str, list[int]]]:
    """(model, token ids): half of them begin with the same twenty tokens."""
    rng = random.Random(seed)
    shared = [rng.randrange(10, 500) for _ in range(20)]
    return [
        (
            rng.choice(list(FAMILIES)),
            shared * (i % 2) + [rng.randrange(10, 500) for _ in range(rng.randint(1, 12))],
        )
        for i in range(count)
    ]


def _write(path: Path, asked: Sequence[tuple[str, list[int]]]) -> str:
    fixed = {"max_tokens": OUTPUT_TOKENS, "temperature": 0, "ignore_eos": True}
    with path.open("w") as file:
        for number, (model, prompt) in enumerate(asked):
            body = {"model": model, "prompt": prompt, **fixed}
            entry = {"custom_id": f"r-{number}", "url": "/v1/completions", "body": body}
            file.write(json.dumps({"method": "POST", **entry}) + "\n")
    return str(path)


def _texts(path: Path) -> dict[str, str]:
    """Answers by custom_id, each of which may be there once."""
    found: dict[str, str] = {}
    for line in path.read_text().splitlines():
        entry = json.loads(line)
        assert entry["custom_id"] not in found
        assert entry["error"] is None
        assert entry["response"]["status_code"] == 200
        found[entry["custom_id"]] = entry["response"]["body"]["choices"][0]["text"]
    return found


def _ran(capsys, *arguments: str) -> Mapping[str, Any]:
    code, out, err = call(capsys, "batch", "run", *arguments, "--json")
    assert code == 0, err
    content: Mapping[str, Any] = json.loads(out)
    return content


def test_answers_are_hugging_faces_in_every_order(
    capsys, tmp_path: Path, config: str, models: dict[str, Path]
) -> None:
    asked = _prompts(24)
    file = _write(tmp_path / "in.jsonl", asked)
    answers = {}
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
        answers[order] = _texts(output)
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


def _whole(text: str) -> str:
    """Without what is half a character where prompt and output meet."""
    return text.strip("\ufffd")


def _started(*arguments: str) -> "subprocess.Popen[str]":
    code = "from muxcluster.cli.main import main; main()"
    command = (sys.executable, "-c", code, "batch", "run", *arguments)
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _num_ended(state: Path) -> int:
    """Lines that the folder says have ended; 0 before it says anything."""
    database = state / "batches.sqlite"
    if not database.exists():
        return 0
    connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True)
    try:
        rows = connection.execute("SELECT num_completed + num_failed FROM batches").fetchall()
    except sqlite3.OperationalError:
        # its tables are not made yet
        return 0
    finally:
        connection.close()
    return int(rows[0][0]) if rows else 0


def _interrupt(arguments: Sequence[str], state: Path, after: int, signum: int) -> None:
    """Start the command and end it when at least so many lines have ended."""
    process = _started(*arguments)
    deadline = time.monotonic() + START_TIMEOUT_S
    while process.poll() is None and _num_ended(state) < after:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.send_signal(signum)
    _, err = process.communicate(timeout=START_TIMEOUT_S)
    if signum == signal.SIGINT and process.returncode != 0:
        assert process.returncode == 130, err
        assert "lines have ended; the same command goes on from there" in err


@pytest.mark.parametrize(
    "moments",
    [
        (40,),
        pytest.param((1, 150, 200, 330, 590), marks=pytest.mark.slow),
    ],
)
def test_interrupted_it_goes_on_where_it_stopped(
    capsys, tmp_path: Path, config: str, moments: Sequence[int]
) -> None:
    count = 600
    file = _write(tmp_path / "in.jsonl", _prompts(count, seed=1))
    output = tmp_path / "out.jsonl"
    arguments = (file, "-o", str(output), "--config", config, "--order", "dfs")
    num_ended = 0
    for number, moment in enumerate(moments):
        signum = signal.SIGKILL if number % 2 == 0 else signal.SIGINT
        _interrupt(arguments, tmp_path / "out.jsonl.batch", moment, signum)
        now = _num_ended(tmp_path / "out.jsonl.batch")
        assert now >= num_ended
        num_ended = now
    if not output.exists():
        said = _ran(capsys, *arguments)
        assert (said["total"], said["completed"]) == (count, count)
        assert said["output_tokens"] == (count - num_ended) * OUTPUT_TOKENS
    assert len(_texts(output)) == count
    assert not (tmp_path / "out.jsonl.batch").exists()


def test_wrong_lines_are_told_and_the_rest_runs(capsys, tmp_path: Path, config: str) -> None:
    file = tmp_path / "in.jsonl"
    _write(file, _prompts(2))
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
    assert sorted(_texts(tmp_path / "out.jsonl")) == ["r-0", "r-1"]
    lines = (tmp_path / "out.errors.jsonl").read_text().splitlines()
    told = {entry["line"]: entry for entry in map(json.loads, lines)}
    assert sorted(told) == [3, 4, 5]
    codes = [told[line]["response"]["body"]["error"]["code"] for line in (3, 4)]
    assert codes == ["unsupported_parameter", "context_length_exceeded"]
    assert told[5]["custom_id"] is None


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
    _write(file, _prompts(1))
    assert "--order lifo: expected one of auto" in refusal(capsys, *base, "--order", "lifo")
    output.write_text("mine")
    assert "out.jsonl: is there already" in refusal(capsys, *base)
    assert output.read_text() == "mine"


def test_it_does_not_import_ray(tmp_path: Path, config: str) -> None:
    file, output = _write(tmp_path / "in.jsonl", _prompts(2)), tmp_path / "out.jsonl"
    code = (
        "import sys; from muxcluster.cli.main import run; "
        f"code = run(['batch', 'run', {file!r}, '-o', {str(output)!r}, '--config', {config!r}]); "
        "sys.exit(code or any(name in sys.modules for name in ('ray', 'fastapi')))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=300)
    assert len(_texts(output)) == 2
