"""Each fault of planted_faults.py, planted in a copy of the source, makes its tests fail."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.amounts import THOROUGH
from tests.conftest import ROOT
from tests.planted_faults import FAULTS, Fault

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

DATA = {"MUXCLUSTER_DATA": str(ROOT.parent / "shared" / "data")}  # not found beside the copy
TESTS_FAILED = 1  # pytest's exit code; others say that the run itself went wrong


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name.replace(" ", "-"))
def test_a_planted_fault_is_found(fault: Fault, tmp_path: Path) -> None:
    for folder in ("muxcluster", "tests", "bench"):
        without = shutil.ignore_patterns("__pycache__", "results")
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=without)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    file = tmp_path / "muxcluster" / fault.file
    source = file.read_text()
    assert source.count(fault.line) == 1, f"{fault.file} has changed: mend planted_faults.py"
    file.write_text(source.replace(fault.line, fault.planted))
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
    every_case = ["-m", "not gpu and not hosts", f"--hypothesis-profile={THOROUGH}"]
    ended = subprocess.run(
        [*command, *every_case, *fault.tests.split()],
        cwd=tmp_path,
        env={**DATA, **os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == TESTS_FAILED, ended.stdout[-2000:]
