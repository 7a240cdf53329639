"""The wheel in fresh environments: the base install, and what `[serve]` adds to it."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from muxcluster.cli.main import COMMANDS
from tests.cluster.conftest import MarkedProcess
from tests.conftest import ROOT

CONSTRAINTS = ROOT / "constraints.txt"


def _run(*command: str | Path, cwd: Path, asked: str = "") -> subprocess.CompletedProcess[str]:
    words = [str(word) for word in command]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return subprocess.run(
        words,
        cwd=cwd,
        env=environment,
        input=asked,
        capture_output=True,
        text=True,
        timeout=1800,
    )


def _done(*command: str | Path, cwd: Path, asked: str = "") -> str:
    done = _run(*command, cwd=cwd, asked=asked)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder outside the checkout with the wheel in it."""
    folder = tmp_path_factory.mktemp("install")
    source = folder / "source"
    files = _done("git", "ls-files", "--cached", cwd=ROOT).splitlines()
    for name in files:
        if (ROOT / name).is_file():  # a file may be deleted and not yet committed so
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    _done(sys.executable, "-m", "pip", "wheel", "--no-deps", "-q", "-w", ".", source, cwd=folder)
    return folder


def _environment(folder: Path, name: str, extras: str = "") -> Path:
    """The programs of a new environment with the wheel, as its users install it."""
    (wheel,) = folder.glob("muxcluster-*.whl")
    _done(sys.executable, "-m", "venv", name, cwd=folder)
    programs = folder / name / "bin"
    pip = (programs / "python", "-m", "pip", "install", "-q", "-c", CONSTRAINTS)
    _done(*pip, f"{wheel}{extras}", cwd=folder)
    return programs


def test_the_constraints_hold_what_is_asked_for_and_name_no_registry() -> None:
    """Every requirement of the base install and of [serve] and [plot] has one version, in range."""
    text = CONSTRAINTS.read_text()
    assert "://" not in text and not re.search(r"^-", text, re.MULTILINE)
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    pins = {each.name: each for each in map(Requirement, lines) if _is_here(each)}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    for asked in map(Requirement, (*project["dependencies"], *extras["serve"], *extras["plot"])):
        (pin,) = pins[canonicalize_name(asked.name)].specifier
        assert pin.operator == "==" and asked.specifier.contains(pin.version), asked
    assert str(pins["torch"].specifier).endswith("+cpu") == (sys.platform == "linux")


def _is_here(requirement: Requirement) -> bool:
    return requirement.marker is None or requirement.marker.evaluate()


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_base_install_plans_and_says_what_serve_needs(folder: Path) -> None:
    programs = _environment(folder, "base")
    muxcluster = programs / "muxcluster"
    for name in ("torch", "ray", "transformers", "huggingface_hub"):
        missing = _run(programs / "python", "-c", f"import {name}", cwd=folder)
        assert "ModuleNotFoundError" in missing.stderr
    (folder / "muxcluster.yaml").write_text(
        "models: [{name: m, shape: opt-125m}]\ncluster: {nodes: [{name: n, gpus: 1, gpu: L4}]}\n"
    )
    assert "m" in _done(muxcluster, "place", "muxcluster.yaml", cwd=folder)
    assert "opt-125m" in _done(muxcluster, "place", "--known", cwd=folder)
    shown = _done(muxcluster, "simulate", "muxcluster.yaml", "--duration", "5", cwd=folder)
    assert "muxserve" in shown
    assert "acme/tiny" in _done(muxcluster, "init", "acme/tiny", "-o", "-", cwd=folder)
    for words in (*([name] for name in COMMANDS), ["batch", "run"]):
        assert "Usage" in _done(muxcluster, *words, "--help", cwd=folder)
    for words in (("serve", "muxcluster.yaml"), ("serve", "acme/tiny")):
        refused = _run(muxcluster, *words, cwd=folder)
        assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
        assert refused.stderr.startswith("muxcluster: serve needs ")
        assert refused.stderr.endswith("pip install 'muxcluster[serve]'\n")


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_serve_extra_alone_runs_the_demo_and_serves_its_models(folder: Path) -> None:
    programs = _environment(folder, "serve", "[serve]")
    muxcluster = programs / "muxcluster"
    frozen = _done(programs / "python", "-m", "pip", "freeze", cwd=folder).splitlines()
    pinned = set(CONSTRAINTS.read_text().lower().replace("-", "_").splitlines())
    pinned |= {line.partition(";")[0] for line in pinned}
    others = [line for line in frozen if "==" in line and _plain(line) not in pinned]
    assert others == []  # one version of everything
    shown = _done(muxcluster, "demo", "--requests", "9", "--seconds", "3", cwd=folder)
    assert "streamed at the same time" in shown
    assert "pip install 'muxcluster[plot]'" in shown
    models = sorted(path.parent for path in (folder / ".demo").rglob("config.json"))
    assert len(models) == 3
    server = MarkedProcess((str(muxcluster), "serve", *map(str, models), "--port", "0"), {}, folder)
    try:
        server.wait_for(r"\nready after")
        url = server.wait_for(r"curl (http://\S+?)/v1/")[1]
        for model in models:
            words = ("chat", model.name, "--url", url, "--max-tokens", "4")
            _done(muxcluster, *words, cwd=folder, asked="Hello\n")
    finally:
        code = server.stop()
    server.join()
    assert code == 0 and str(ROOT) not in server.output
    server.assert_gone(set())


def _plain(line: str) -> str:
    return line.lower().replace("-", "_")
