"""Bad input to `muxcluster serve`: one line that names it, exit code 2, nothing started."""

import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

Edit = Callable[[dict[str, Any], Path], object]


def _rename_key(config: dict[str, Any], copy: Path) -> None:
    config["models"][0]["rat"] = config["models"][0].pop("rate")


def _lose_path(config: dict[str, Any], copy: Path) -> None:
    config["models"][0]["path"] = str(copy / "nowhere")


def _truncate(config: dict[str, Any], copy: Path) -> None:
    weights = copy / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])


def _corrupt(config: dict[str, Any], copy: Path) -> None:
    weights = copy / "model.safetensors"
    weights.write_bytes(b"\xff" * 8 + weights.read_bytes()[8:])


def _lose_tokenizer(config: dict[str, Any], copy: Path) -> None:
    (copy / "tokenizer.json").unlink()


@pytest.mark.parametrize(
    ("edit", "named"),
    [
        (_rename_key, ("rat", "rate")),
        (_lose_path, ("nowhere",)),
        (_truncate, ("model.safetensors",)),
        (_corrupt, ("model.safetensors",)),
        (_lose_tokenizer, ("tokenizer.json",)),
    ],
)
def test_a_wrong_file_is_named_in_one_line(
    config_file: Path, tmp_path: Path, start_server: Any, edit: Edit, named: tuple[str, ...]
) -> None:
    config = yaml.safe_load(config_file.read_text())
    copy = tmp_path / "copy"
    shutil.copytree(config["models"][0]["path"], copy)
    config["models"][0]["path"] = str(copy)
    edit(config, copy)
    broken = tmp_path / "broken.yaml"
    broken.write_text(yaml.safe_dump(config))
    server = start_server("serve", str(broken), "--port", "0")
    assert server.process.wait(60) == 2, server.output
    server.join()
    assert len(server.lines) == 1, server.output
    assert all(name in server.output for name in named), server.output
    server.assert_gone(set())


def test_a_taken_port_is_named(config_file: Path, start_server: Any) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        server = start_server("serve", str(config_file), "--port", port)
        assert server.process.wait(60) == 2, server.output
    server.join()
    assert len(server.lines) == 1 and f"127.0.0.1:{port}" in server.output
    server.assert_gone(set())
