"""Commands of README and docs: those that can run here are run, the others say why not.

A ```console block stands below one of

    <!-- run -->              the default suite runs its commands, in order, in one folder
    <!-- run: slow -->        the slow tests do
    <!-- not run: REASON -->

or is a generated block, whose commands were run to make it.
"""

import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from docs.generate.blocks import BLOCK
from muxcluster.config.load import load_config
from tests.conftest import ROOT
from tests.docs.pages import all_pages, name_of

FENCE = re.compile(
    r"(?P<before>[^\n]*)\n```console\n(?P<commands>.*?)^```", re.DOTALL | re.MULTILINE
)
MARK = re.compile(r"^<!-- (?P<how>run|run: slow|not run: .{10,}) -->$")
YAML = re.compile(r"^```yaml\n(.*?)^```", re.DOTALL | re.MULTILINE)
PYTHON = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Block:
    """The commands of a fence, and how it is marked."""

    page: Path
    number: int
    how: str
    commands: tuple[str, ...]

    def __str__(self) -> str:
        return f"{name_of(self.page)}-{self.number}"


def blocks() -> list[Block]:
    found = []
    for page in all_pages():
        text = BLOCK.sub("", page.read_text(encoding="utf-8"))
        for number, match in enumerate(FENCE.finditer("\n" + text)):
            mark = MARK.match(match["before"])
            lines = match["commands"].replace("\\\n", " ").splitlines()
            commands = tuple(line.removeprefix("$ ") for line in lines if line.strip())
            found.append(Block(page, number, mark["how"] if mark else "", commands))
    return found


BLOCKS = blocks()


def run_all(block: Block, folder: Path) -> None:
    (folder / "examples").symlink_to(ROOT / "examples")
    environment = {**os.environ, "COLUMNS": "160", "PYTHONPATH": str(ROOT)}
    for command in block.commands:
        program, *arguments = shlex.split(command, comments=True)
        assert program == "muxcluster", f"{command}: only our own commands are run"
        done = subprocess.run(
            (sys.executable, "-m", "muxcluster.cli.main", *arguments),
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
        for option in ("--out", "--plot", "--timeline"):
            if option in arguments:
                made = folder / arguments[arguments.index(option) + 1]
                assert made.stat().st_size > 0, command


def of(how: str) -> list[Block]:
    return [block for block in BLOCKS if block.how == how]


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_every_block_is_run_or_says_why_not(block: Block) -> None:
    assert block.how, f"put <!-- run --> or <!-- not run: REASON --> above {block.commands[:1]}"


@pytest.mark.parametrize("block", of("run"), ids=str)
def test_commands_run(block: Block, tmp_path: Path) -> None:
    run_all(block, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("block", of("run: slow"), ids=str)
def test_long_commands_run(block: Block, tmp_path: Path) -> None:
    run_all(block, tmp_path)


def test_some_commands_of_each_kind_are_found() -> None:
    assert len(of("run")) >= 1
    assert len(of("run: slow")) >= 3


@pytest.mark.parametrize("page", all_pages(), ids=name_of)
def test_yaml_is_a_configuration(page: Path, tmp_path: Path) -> None:
    """Examples are read by the reader itself; parts of a file are completed by a model."""
    for text in YAML.findall(page.read_text(encoding="utf-8")):
        found = yaml.safe_load(text)
        models = found.setdefault("models", [{"name": "m", "shape": "llama-2-7b"}])
        for model in models:
            if model.pop("path", None):  # weights that only the reader has
                model["shape"] = "llama-2-7b"
            model.pop("adapters", None)  # weights, too
        path = tmp_path / "muxcluster.yaml"
        path.write_text(yaml.safe_dump(found), encoding="utf-8")
        assert load_config(path).models


@pytest.mark.parametrize("page", all_pages(), ids=name_of)
def test_python_compiles(page: Path) -> None:
    for number, text in enumerate(PYTHON.findall(page.read_text(encoding="utf-8"))):
        compile(text, f"{page}:{number}", "exec")


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda p: p.name)
def test_examples_are_configurations(path: Path) -> None:
    if "provider" in yaml.safe_load(path.read_text(encoding="utf-8")):
        pytest.skip("a file for ray up")
    assert load_config(path).models
