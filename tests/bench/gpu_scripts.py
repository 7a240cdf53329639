"""Runs a script of bench/gpu as on a machine that has torch, transformers and little else."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.conftest import ROOT

ABSENT = ("pydantic", "ray", "zmq", "msgspec", "fastapi", "openai")
"""What the machines with GPUs that the scripts were written for do not have."""


def run_bare(
    script: str, *arguments: str, cwd: Path, timeout_s: float = 400
) -> subprocess.CompletedProcess[str]:
    """Also its child processes find none of `ABSENT`."""
    block = f"import sys\nfor name in {ABSENT!r}:\n    sys.modules[name] = None\n"
    (cwd / "sitecustomize.py").write_text(block, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(cwd)}
    command = (sys.executable, str(ROOT / "bench" / "gpu" / script), *arguments)
    return subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=timeout_s
    )


def record_of(script: str, *arguments: str, cwd: Path, timeout_s: float = 400) -> dict[str, Any]:
    """Of a run that ended well."""
    path = cwd / "record.json"
    done = run_bare(script, *arguments, "--json", str(path), cwd=cwd, timeout_s=timeout_s)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return record
