"""The wheel in fresh environments: the base install, and what `[serve]` adds to it."""

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def _run(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    words = [str(word) for word in command]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return subprocess.run(
        words, cwd=cwd, env=environment, capture_output=True, text=True, timeout=1800
    )


def _done(*command: str | Path, cwd: Path) -> str:
    done = _run(*command, cwd=cwd)
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


def _environment(folder: Path, name: str, *wanted: str) -> Path:
    """The muxcluster command of a new environment with the wheel and its extras."""
    (wheel,) = folder.glob("muxcluster-*.whl")
    _done(sys.executable, "-m", "venv", name, cwd=folder)
    pip = (folder / name / "bin" / "python", "-m", "pip", "install", "-q")
    # torch goes first, as in the Makefile: the version that is tested here
    extras = "[serve]" if wanted else ""
    for each in (*wanted, f"{wheel}{extras}"):
        _done(*pip, each, cwd=folder)
    return folder / name / "bin" / "muxcluster"


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_base_install_plans_and_says_what_serve_needs(folder: Path) -> None:
    muxcluster = _environment(folder, "base")
    (folder / "muxcluster.yaml").write_text(
        "models: [{name: m, shape: opt-125m}]\ncluster: {nodes: [{name: n, gpus: 1, gpu: L4}]}\n"
    )
    assert "m" in _done(muxcluster, "place", "muxcluster.yaml", cwd=folder)
    for words in (("serve",), ("demo",), ("up",), ("down",), ("bench",), ("batch", "run")):
        assert "Usage" in _done(muxcluster, *words, "--help", cwd=folder)
    refused = _run(muxcluster, "serve", "muxcluster.yaml", cwd=folder)
    assert refused.returncode == 2
    assert refused.stderr.startswith("muxcluster: serve needs ")
    assert refused.stderr.endswith("pip install 'muxcluster[serve]'\n")


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_serve_extra_alone_runs_the_demo(folder: Path) -> None:
    torch = version("torch").partition("+")[0]
    muxcluster = _environment(folder, "serve", f"torch=={torch}")
    shown = _done(muxcluster, "demo", "--requests", "9", "--seconds", "3", cwd=folder)
    assert "streamed at the same time" in shown
    assert "pip install 'muxcluster[plot]'" in shown
