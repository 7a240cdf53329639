"""The programs of examples/ run as they stand."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

SAID = {
    "plan_a_cluster.py": ["a-0: GPU 0 of a", "  chat-8b: 4.00 req/s", "GPUs needed: 2"],
    "simulate_a_trace.py": ["muxserve: ", "muxserve:quotas=off: ", "temporal: "],
    "structured_outputs.py": [
        "person: name=",
        "choice: ",
        "date: 20",
        "refused: structured_outputs.json",
    ],
    "serve_in_process.py": [f"tiny-{name}: " for name in ("llama", "opt", "qwen3")],
    "serve_parked_models.py": [
        f"tiny-{name}: 8 tokens" for name in ("llama", "opt", "qwen2", "qwen3")
    ],
}


def test_every_program_is_run() -> None:
    assert {path.name for path in (ROOT / "examples").glob("*.py")} == set(SAID)


# They start many processes.
_SLOW = frozenset({"serve_in_process.py", "serve_parked_models.py", "structured_outputs.py"})


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in _SLOW else ()) for name in SAID]
)
def test_a_program_runs(name: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / name],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    for start in SAID[name]:
        assert any(line.startswith(start) for line in lines), done.stdout
