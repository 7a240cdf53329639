"""Generated blocks inside pages that are written by hand.

<!-- generated: NAME -->        a template of `block_templates`, filled
<!-- generated: $ COMMAND -->   the command, and what it prints
…
<!-- end -->
"""

import re
import shlex
import subprocess
import sys
from pathlib import Path

from docs.generate.records import ROOT
from docs.generate.template import filled

TEMPLATES = Path(__file__).resolve().parent / "block_templates"
BLOCK = re.compile(r"(<!-- generated: (?P<what>.+?) -->\n).*?(<!-- end -->)", re.DOTALL)
# Planning time differs from run to run: it is left out of what is shown.
_PLANNING_TIME = re.compile(r"; [0-9.]+ s$", re.MULTILINE)
_WIDTH = "160"


def with_blocks(text: str) -> str:
    """Return a page with its blocks made again. Raises LookupError, CalledProcessError."""
    return BLOCK.sub(lambda match: f"{match[1]}{_content(match['what'])}\n{match[3]}", text)


def _content(what: str) -> str:
    if what.startswith("$ "):
        command = what.removeprefix("$ ")
        return f"```console\n$ {command}\n{printed_by(command)}\n```"
    path = TEMPLATES / f"{what}.md"
    if not path.exists():
        raise LookupError(f"no block {what} in {TEMPLATES.relative_to(ROOT)}")
    return filled(path.read_text(encoding="utf-8")).strip("\n")


def printed_by(command: str) -> str:
    """Return what a `muxcluster` command prints in the repository's root, without planning time."""
    program, *arguments = shlex.split(command)
    assert program == "muxcluster", command
    done = subprocess.run(
        (sys.executable, "-m", "muxcluster.cli.main", *arguments),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        env={
            "COLUMNS": _WIDTH,
            "PATH": "/usr/bin:/bin",
            "PYTHONPATH": str(ROOT),
            "LC_ALL": "C.UTF-8",
        },
    )
    lines = (line.rstrip() for line in done.stdout.strip("\n").splitlines())
    return _PLANNING_TIME.sub("", "\n".join(lines))
