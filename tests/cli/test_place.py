"""`muxcluster place` and the entry point around it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from muxcluster.cli import main as entry
from muxcluster.core.errors import EngineFailure
from placement.plan import Plan

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "muxcluster.yaml"


def call(capsys, *arguments: str) -> tuple[int, str, str]:
    """(exit code, stdout, stderr)."""
    code = entry.run(list(arguments))
    shown = capsys.readouterr()
    return code, shown.out, shown.err


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
        (["place"], "Missing argument"),
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

    monkeypatch.setattr(entry, "_load", lambda name: command)
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
