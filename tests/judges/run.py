"""Run the judges: `python -m tests.judges.run [NAME ...]`, or `make test-judges`.

Each judge gets an environment of its own in `--folder`, where it is kept for the next time: pip or
npm must reach a registry. One HTTP server over a real unit with tiny random models answers all. A
judge that cannot be installed is named and counts as no failure; a check that fails makes the exit
code 1, and it is 2 where none could be installed.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from muxcluster.demo.models import build_model
from muxcluster.http.settings import ApiSettings, StoreSettings
from tests.http.live_server import live_server
from tests.http.tool_models import tool_model
from tests.judges.judges import JUDGES, Judge
from tests.models import as_embedder

PROGRAMS = Path(__file__).with_name("programs")
INSTALL_S, RUN_S = 1200.0, 900.0
MODEL, EMBEDDER = "tiny", "embedder"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a judge found. checks: by name, with the error or nothing. problem: it did not run."""

    judge: str
    version: str = ""
    checks: tuple[tuple[str, str], ...] = ()
    problem: str = ""


@contextmanager
def server() -> Iterator[tuple[str, Path]]:
    """A server without Ray; yields its URL and the directory of its model."""
    with tempfile.TemporaryDirectory(prefix="judges-") as name:
        folder = Path(name)
        content = yaml.safe_load(tool_model(folder).read_text())
        as_embedder(build_model(folder / EMBEDDER, "qwen3", seed=1))
        content["models"].append({"name": EMBEDDER, "path": EMBEDDER, "max_model_len": 512})
        file = folder / "judges.yaml"
        file.write_text(yaml.safe_dump(content))
        settings = ApiSettings(store=StoreSettings(str(folder / "responses"), 30, 2**30))
        with live_server(file, settings) as url:
            yield url, folder / MODEL


def installed(judge: Judge, folder: Path) -> tuple[Sequence[str], str]:
    """Return how the judge's programs are run, and its version. Raises RuntimeError."""
    home = folder / judge.name
    if judge.is_node:
        home.mkdir(parents=True, exist_ok=True)
        _run(["npm", "install", "--no-fund", "--no-audit", "--prefix", str(home), *judge.needs])
        package = home / "node_modules" / judge.needs[0] / "package.json"
        return ["node"], json.loads(package.read_text())["version"]
    python = home / "bin" / "python"
    if not python.exists():
        venv.create(home, with_pip=True)
    _run([str(python), "-m", "pip", "install", "--quiet", *judge.needs])
    name = judge.needs[0].partition("[")[0]
    asked = f"import importlib.metadata as m; print(m.version({name!r}))"
    return [str(python)], _run([str(python), "-c", asked]).strip()


def _run(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=INSTALL_S, env=_clean()
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RuntimeError(str(error)[:200]) from error
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["it failed"]
        raise RuntimeError(lines[-1][:200])
    return done.stdout


def _clean() -> dict[str, str]:
    """The environment without our own paths."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    # no program may ask the network for more than it was installed with
    return {**kept, "HF_HUB_OFFLINE": "1", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}


def judged(judge: Judge, folder: Path, url: str, model: Path) -> Verdict:
    """Install and run one judge."""
    try:
        command, version = installed(judge, folder)
    except RuntimeError as error:
        return Verdict(judge.name, problem=f"not installed: {error}")
    script = PROGRAMS / judge.script
    told = {
        **_clean(),
        "JUDGE_URL": url,
        "JUDGE_MODEL": MODEL,
        "JUDGE_EMBEDDER": EMBEDDER,
        "JUDGE_TOKENIZER": str(model),
        "JUDGE_HOME": str(folder / judge.name),
    }
    try:
        done = subprocess.run(
            [*command, str(script)], capture_output=True, text=True, timeout=RUN_S, env=told
        )
    except subprocess.TimeoutExpired:
        return Verdict(judge.name, version, (("all", f"no end after {RUN_S:g} s"),))
    found = tuple(_checks(done.stdout))
    if done.returncode and not any(error for _, error in found):
        lines = done.stderr.strip().splitlines() or ["it failed"]
        found = (*found, ("all", lines[-1][:300]))
    return Verdict(judge.name, version, found)


def _checks(output: str) -> Iterator[tuple[str, str]]:
    """The checks that a program has printed, a line of JSON each."""
    for line in output.splitlines():
        if line.startswith('{"check"'):
            check = json.loads(line)
            yield check["check"], check.get("error") or ""


def table(verdicts: Sequence[Verdict]) -> str:
    """The verdicts as a table of Markdown."""
    lines = ["| judge | version | checks | failed |", "|---|---|---|---|"]
    for each in verdicts:
        failed = [f"{name}: {error}" for name, error in each.checks if error]
        said = each.problem or "<br>".join(failed).replace("|", "\\|") or "none"
        lines.append(f"| {each.judge} | {each.version} | {len(each.checks)} | {said} |")
    return "\n".join(lines)


def main() -> int:
    """Run all judges, or those that are named; print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="by default all")
    parser.add_argument("--folder", type=Path, default=Path(".judges"), help="of environments")
    options = parser.parse_args()
    known = {judge.name: judge for judge in JUDGES}
    unknown = [name for name in options.names if name not in known]
    if unknown:
        parser.error(f"no judge {unknown[0]}: choose from {', '.join(known)}")
    chosen = [known[name] for name in options.names] or list(JUDGES)
    folder: Path = options.folder.absolute()
    with server() as (url, model):
        verdicts = []
        for judge in chosen:
            verdicts.append(judged(judge, folder, url, model))
            failed = sum(bool(error) for _, error in verdicts[-1].checks)
            told = verdicts[-1].problem or f"{len(verdicts[-1].checks)} checks, {failed} failed"
            sys.stderr.write(f"{judge.name}: {told}\n")
    sys.stdout.write(f"{table(verdicts)}\n")
    if all(each.problem for each in verdicts):
        return 2  # nothing has been judged
    return int(any(error for each in verdicts for _, error in each.checks))


if __name__ == "__main__":
    sys.exit(main())
