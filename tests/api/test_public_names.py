"""The names of `import muxcluster`: few, cheap, typed, with examples that run."""

import ast
import doctest
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import muxcluster
from tests.conftest import ROOT

CHEAP = """
import sys, muxcluster
assert not {"numpy", "pydantic"} & set(sys.modules), "the bare import brings libraries"
from muxcluster import Plan, RequestError, SamplingParams, load_config, plan, simulate
simulate(load_config("examples/small.yaml"), systems=["temporal"], duration_s=1)
heavy = {"torch", "transformers", "tokenizers", "ray", "fastapi", "zmq"} & set(sys.modules)
assert not heavy, heavy
"""
LIGHT = """
import sys
from muxcluster import Unit
heavy = {"ray", "fastapi", "uvicorn", "torch", "transformers"} & set(sys.modules)
assert not heavy, heavy
"""
NO_SERVE = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "msgspec", "tokenizers", "safetensors"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
try:
    from muxcluster import Unit
except ImportError as error:
    print(error)
"""


def printed(script: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=250
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("script", [CHEAP, LIGHT], ids=["planning", "serving"])
def test_imports_bring_no_more_than_is_used(script: str) -> None:
    printed(script)


def test_what_to_install_is_said() -> None:
    said = printed(NO_SERVE)
    assert re.fullmatch(r"muxcluster.Unit needs \w+: pip install 'muxcluster\[serve\]'", said)


def test_every_name_is_typed_and_there() -> None:
    stub = ast.parse(Path(muxcluster.__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    imported = [
        (f"{node.module}", alias.name)
        for node in stub.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    ]
    (listed,) = (node.value for node in stub.body if isinstance(node, ast.Assign))
    assert ast.literal_eval(listed) == muxcluster.__all__
    assert sorted(name for _, name in imported) == muxcluster.__all__
    for module, name in imported:
        assert getattr(muxcluster, name) is getattr(sys.modules[module], name)
    assert set(muxcluster.__all__) <= set(dir(muxcluster))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Client'"):
        _ = muxcluster.Client  # type: ignore[attr-defined]


VALUES = [
    name
    for name in muxcluster.__all__
    if not (isinstance(getattr(muxcluster, name), type) and name.endswith("Error"))
    and name not in ("EngineFailure", "InfeasiblePlan", "Unavailable")
]


@pytest.mark.parametrize("name", VALUES)
def test_examples_of_docstrings_run(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    item: Any = getattr(muxcluster, name)
    runner = doctest.DocTestRunner()
    found = [each for each in doctest.DocTestFinder().find(item, name) if each.examples]
    assert found, f"{name} has no example"
    said: list[str] = []
    for each in found:
        runner.run(each, out=said.append)
    assert runner.summarize(verbose=False).failed == 0, "".join(said)
