"""`muxcluster demo` from nothing to the picture, small."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_the_demo_shows_a_table_and_a_picture(tmp_path: Path) -> None:
    command = "from muxcluster.cli.main import main; main()"
    arguments = ("demo", "--out", str(tmp_path), "--requests", "12", "--seconds", "4")
    done = subprocess.run(
        [sys.executable, "-c", command, *arguments],
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "COLUMNS": "120"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for words in ("random", "at the same time", "KV quota", "tiny-llama", "tiny-qwen3", "tiny-opt"):
        assert words in done.stdout
    assert (tmp_path / "timeline.svg").read_text().startswith("<?xml")
    assert (tmp_path / "timeline.png").read_bytes().startswith(b"\x89PNG")
