"""Every command in an install without extras: help, a hint what to install, or its work."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from muxcluster.cli.main import COMMANDS, GROUPS

BASE = (
    *("numpy", "scipy", "pydantic", "yaml", "typer", "rich"),
    *("annotated_doc", "annotated_types", "click", "markdown_it", "mdurl", "pydantic_core"),
    *("pygments", "shellingham", "typing_extensions", "typing_inspection", "_yaml"),
)
"""What `pip install muxcluster` brings, and what that brings, by the names that are imported."""

SCRIPT = """
import contextlib, io, json, sys

PRESENT = {"muxcluster", *json.loads(sys.argv[1])}

class Absent:
    def find_spec(self, name, path=None, target=None):
        library = name.partition(".")[0]
        if library in PRESENT or library in sys.stdlib_module_names:
            return
        if not library.startswith("_sysconfigdata"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
from muxcluster.cli.main import run

results = []
for words in json.loads(sys.stdin.read()):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = run(words)
        except BaseException as error:
            code = repr(error)
    results.append([code, out.getvalue(), err.getvalue()])
print(json.dumps(results))
"""

WORDS = [
    *([name] for name in COMMANDS),
    *([group, action] for group, actions in GROUPS.items() for action in actions),
]
NEED_SERVE = (
    ["serve", "CONFIG"],
    ["serve", "model", "acme/tiny"],
    ["place", "HUB"],
    ["up", "CONFIG"],
    ["down", "--yes"],
    ["demo"],
    ["batch", "run", "JOB", "-o", "answers.jsonl", "--config", "CONFIG"],
    ["profile", "CONFIG", "--json"],
    ["status", "--address", "auto"],
)
NEED_NOTHING = (
    ["place", "CONFIG"],
    ["place", "--known"],
    ["init", "acme/tiny", "-o", "-"],
    ["simulate", "CONFIG", "--duration", "5", "--systems", "temporal", "--processes", "1"],
    ["batch", "plan", "JOB", "--config", "CONFIG"],
)
NEED_A_SERVER = (
    ["bench", "serve", "--model", "m", "--num-prompts", "1", "--url", "http://127.0.0.1:9"],
    ["status", "--url", "http://127.0.0.1:9"],
    ["chat", "m", "--url", "http://127.0.0.1:9"],
    ["batch", "status", "--url", "http://127.0.0.1:9"],
    ["batch", "submit", "JOB", "--url", "http://127.0.0.1:9"],
)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Any, str, str]]:
    """Arguments -> (exit code, stdout, stderr), all called in one process without extras."""
    folder = tmp_path_factory.mktemp("base")
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text(
        '{"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64,'
        ' "num_attention_heads": 4, "vocab_size": 99, "intermediate_size": 99,'
        ' "max_position_embeddings": 512}'
    )
    config = folder / "muxcluster.yaml"
    config.write_text(
        "models: [{name: m, path: model, load_format: dummy}]\n"
        "cluster: {nodes: [{name: a, gpu: cpu, cores: 1, memory_gb: 4}]}\n"
    )
    job = folder / "job.jsonl"
    body = {"model": "m", "prompt": "hello", "max_tokens": 4}
    line = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": body}
    job.write_text(json.dumps(line) + "\n")
    hub = folder / "hub.yaml"
    hub.write_text("models: [{name: m, path: acme/tiny}]")
    places = {"HUB": str(hub), "CONFIG": str(config), "JOB": str(job)}
    calls = [[*words, "--help"] for words in WORDS]
    calls += [*NEED_SERVE, *NEED_NOTHING, *NEED_A_SERVER]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(BASE)],
        input=json.dumps([[places.get(word, word) for word in call] for call in calls]),
        capture_output=True,
        text=True,
        timeout=300,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "COLUMNS": "100"},
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    return {" ".join(call): tuple(one) for call, one in zip(calls, found, strict=True)}


@pytest.mark.parametrize("words", WORDS, ids=" ".join)
def test_help_needs_no_extra(results: dict[str, Any], words: list[str]) -> None:
    code, out, err = results[f"{' '.join(words)} --help"]
    assert (code, err) == (0, "")
    assert f"Usage: muxcluster {' '.join(words)}" in out


@pytest.mark.parametrize("call", NEED_SERVE, ids=" ".join)
def test_what_to_install_is_said_in_one_line(results: dict[str, Any], call: list[str]) -> None:
    code, out, err = results[" ".join(call)]
    assert (code, out) == (2, "")
    *before, last = err.splitlines()
    assert all(line.startswith("profile: ") for line in before)
    assert last.startswith("muxcluster: ") and last.endswith("pip install 'muxcluster[serve]'")


@pytest.mark.parametrize("call", NEED_NOTHING, ids=" ".join)
def test_planning_needs_no_extra(results: dict[str, Any], call: list[str]) -> None:
    code, out, err = results[" ".join(call)]
    assert code == 0, err
    assert out


@pytest.mark.parametrize("call", NEED_A_SERVER, ids=" ".join)
def test_clients_of_a_server_need_no_extra(results: dict[str, Any], call: list[str]) -> None:
    code, _, err = results[" ".join(call)]
    assert code == 1
    assert "127.0.0.1" in err and "pip install" not in err


def test_a_missing_module_of_our_own_is_a_mistake_of_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from muxcluster.cli.main import run

    monkeypatch.setitem(sys.modules, "muxcluster.cli.server.demonstration", None)
    with pytest.raises(ModuleNotFoundError, match="demonstration"):
        run(["demo"])
