"""Bad input to `muxcluster serve`: one line that names it, exit code 2, nothing started."""

import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from muxcluster.cli.main import run

Edit = Callable[[dict[str, Any], Path], object]


def _rename_key(config: dict[str, Any], copy: Path) -> None:
    config["models"][0]["rat"] = config["models"][0].pop("rate")


def _lose_path(config: dict[str, Any], copy: Path) -> None:
    config["models"][0]["path"] = str(copy / "nowhere")


def _shrink_memory(config: dict[str, Any], copy: Path) -> None:
    config["cluster"] = {"nodes": [{"name": "small", "gpu": "cpu", "memory_gb": 0.001}]}


def _truncate(config: dict[str, Any], copy: Path) -> None:
    weights = copy / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])


def _corrupt(config: dict[str, Any], copy: Path) -> None:
    weights = copy / "model.safetensors"
    weights.write_bytes(b"\xff" * 8 + weights.read_bytes()[8:])


def _lose_tokenizer(config: dict[str, Any], copy: Path) -> None:
    (copy / "tokenizer.json").unlink()


def _lose_certificate(config: dict[str, Any], copy: Path) -> None:
    config["server"] = {"tls": {"cert": "absent.pem", "key": "absent.pem"}}


def _join_ports(config: dict[str, Any], copy: Path) -> None:
    config["server"] = {"port": 8001, "admin": {"port": 8001}}


def _children() -> set[int]:
    """Processes this one has started, zombies among them."""
    return {
        int(pid)
        for thread in os.listdir("/proc/self/task")
        for pid in Path(f"/proc/self/task/{thread}/children").read_text().split()
    }


def _refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line that `muxcluster serve` refuses `arguments` with, having started nothing."""
    before = _children()
    capsys.readouterr()
    assert run(["serve", *arguments]) == 2
    out, err = capsys.readouterr()
    assert _children() == before
    assert out == "" and err.count("\n") == 1 and err.endswith("\n")
    return err


@pytest.fixture()
def broken(config_file: Path, tmp_path: Path) -> tuple[dict[str, Any], Path]:
    """A configuration whose first model is a copy, and that copy's directory."""
    config: dict[str, Any] = yaml.safe_load(config_file.read_text())
    copy = tmp_path / "copy"
    shutil.copytree(config["models"][0]["path"], copy)
    config["models"][0]["path"] = str(copy)
    return config, copy


@pytest.mark.parametrize(
    ("edit", "named"),
    [
        (_rename_key, ("broken.yaml", "models[0].rat:", "mean rate?")),
        (_lose_path, ("broken.yaml", "models[0].path", "nowhere")),
        (_shrink_memory, ("broken.yaml", "llama-a")),
        (_truncate, ("model.safetensors",)),
        (_corrupt, ("model.safetensors",)),
        (_lose_tokenizer, ("tokenizer.json",)),
        (_lose_certificate, ("absent.pem", "No such file")),
        (_join_ports, ("broken.yaml", "same host and port")),
    ],
)
def test_a_wrong_file_is_named_in_one_line(
    broken: tuple[dict[str, Any], Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    edit: Edit,
    named: tuple[str, ...],
) -> None:
    edit(*broken)
    file = tmp_path / "broken.yaml"
    file.write_text(yaml.safe_dump(broken[0]))
    line = _refusal(capsys, str(file), "--port", "0")
    assert all(name in line for name in named), line


def test_a_taken_port_is_named(config_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        line = _refusal(capsys, str(config_file), "--port", str(port))
    assert f"127.0.0.1:{port}" in line


def test_the_port_of_operators_is_not_that_of_clients(
    config_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nor taken: by an option, or by another server."""
    config = yaml.safe_load(config_file.read_text())
    file = tmp_path / "divided.yaml"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        file.write_text(yaml.safe_dump(config | {"server": {"admin": {"port": port}}}))
        assert f"127.0.0.1:{port}" in _refusal(capsys, str(file), "--port", "0")
    line = _refusal(capsys, str(file), "--port", str(port))
    assert f"127.0.0.1:{port}" in line and "server.admin" in line
    line = _refusal(capsys, str(file), "--port", str(port), "--host", "0.0.0.0")
    assert f"0.0.0.0:{port}" in line and "server.admin" in line


def test_the_process_ends_with_the_code_and_leaves_none(start_server: Any, tmp_path: Path) -> None:
    server = start_server("serve", str(tmp_path / "absent.yaml"))
    assert server.process.wait(60) == 2, server.output
    server.join()
    assert len(server.lines) == 1 and "absent.yaml" in server.output
    server.assert_gone(set())
