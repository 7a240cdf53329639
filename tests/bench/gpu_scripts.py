"""Runs a script of bench/gpu as on a machine that has torch, transformers and little else."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.conftest import ROOT

ABSENT = ("pydantic", "ray", "zmq", "msgspec", "fastapi", "openai")
"""What the machines with GPUs that the scripts were written for do not have."""


def run_bare(
    script: str,
    *arguments: str,
    cwd: Path,
    absent: Sequence[str] = ABSENT,
    timeout_s: float = 500,
) -> subprocess.CompletedProcess[str]:
    """Also its child processes find none of `absent`."""
    block = f"import sys\nfor name in {tuple(absent)!r}:\n    sys.modules[name] = None\n"
    (cwd / "sitecustomize.py").write_text(block, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(cwd)}
    command = (sys.executable, str(ROOT / "bench" / "gpu" / script), *arguments)
    return subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=timeout_s
    )


def record_of(
    script: str,
    *arguments: str,
    cwd: Path,
    absent: Sequence[str] = ABSENT,
    timeout_s: float = 500,
) -> dict[str, Any]:
    """Of a run that ended well."""
    path = cwd / "record.json"
    command = (script, *arguments, "--json", str(path))
    done = run_bare(*command, cwd=cwd, absent=absent, timeout_s=timeout_s)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return record
