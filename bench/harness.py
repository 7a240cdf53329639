"""Parts of all benches: command line, provenance and the JSON record."""

import argparse
import json
import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT.parent / "shared" / "data"
_PACKAGES = ("numpy", "torch", "triton", "transformers", "ray", "uvicorn", "zmq")
# Says which commit runs where the tree is a copy without its git folder.
COMMIT_VARIABLE = "MUXCLUSTER_COMMIT"


@dataclass(frozen=True, slots=True)
class Claim:
    """One number that is said in public."""

    name: str
    value: float
    unit: str
    # the number it is held against, in the same unit: a target or another system's result in the
    # same run; None where it stands alone
    baseline: float | None = None


def make_parser(description: str | None) -> argparse.ArgumentParser:
    """The options every bench has; a bench may add its own."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="smaller, done within a minute")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of all randomness")
    parser.add_argument(
        "--data",
        type=Path,
        default=Path(os.environ.get("MUXCLUSTER_DATA", DATA)),
        metavar="DIR",
        help="folder of real traces (default: $MUXCLUSTER_DATA, else ../shared/data)",
    )
    parser.add_argument(
        "--json", metavar="FILE|-", help="write the record there; -: stdout, and nothing else"
    )
    return parser


# Begins the one line that a script ends with (exit code 1) where something that it needs is absent.
CANNOT_RUN = "cannot run here: "


def cannot_run(reason: str) -> NoReturn:
    """End the script with one line that says what is absent."""
    raise SystemExit(f"{CANNOT_RUN}{reason}")


class Bench:
    """One run of a bench: `options`, any number of `save`s, then one `publish`.

    With `--json -` whatever this process and its children print goes to stderr from here on, so
    that stdout holds the record alone.
    """

    def __init__(self, parser: argparse.ArgumentParser, argv: Sequence[str] | None = None) -> None:
        self.options = parser.parse_args(argv)
        self._command = _command(sys.argv[1:] if argv is None else argv)
        self._start_s = time.monotonic()
        self._started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        self._load = os.getloadavg()[0]
        self._stdout = os.dup(1) if self.options.json == "-" else None
        if self.options.json not in (None, "-"):
            Path(self.options.json).parent.mkdir(parents=True, exist_ok=True)
        if self._stdout is not None:
            sys.stdout.flush()
            os.dup2(2, 1)

    def data(self) -> Path:
        """The folder of real traces. Ends the script where it is absent."""
        folder: Path = self.options.data
        if not folder.is_dir():
            cannot_run(f"no folder of traces at {folder}: use --data or MUXCLUSTER_DATA")
        return folder

    def publish(
        self,
        claims: Sequence[Claim],
        samples: Mapping[str, Sequence[float | Sequence[float]]],
        **results: Any,
    ) -> None:
        """Print the claims and write the record. samples: every single measurement, by series."""
        for claim in claims:
            against = "" if claim.baseline is None else f" (against {claim.baseline:g})"
            print(f"{claim.name} = {claim.value:g} {claim.unit}{against}")
        text = record_text(self._record(claims, samples, results))
        if self._stdout is not None:
            sys.stdout.flush()
            with os.fdopen(self._stdout, "w", encoding="utf-8") as stream:
                stream.write(text)
        elif self.options.json is not None:
            write_whole(Path(self.options.json), text)

    def save(
        self,
        claims: Sequence[Claim],
        samples: Mapping[str, Sequence[float | Sequence[float]]],
        **results: Any,
    ) -> None:
        """Write what there is so far to the `--json` file, as `publish` does; print nothing.

        A bench that is killed later loses only what it measured since. Nothing is written where
        the record goes to stdout, or nowhere.
        """
        if self._stdout is None and self.options.json is not None:
            text = record_text(self._record(claims, samples, results))
            write_whole(Path(self.options.json), text)

    def provenance(self) -> dict[str, Any]:
        """What this run is: command, commit, machine and versions of packages imported so far."""
        return {
            "command": self._command,
            "seed": self.options.seed,
            "quick": self.options.quick,
            "started": self._started,
            "wall_s": round(time.monotonic() - self._start_s, 1),
            **source(),
            "machine": {**_machine(), "load_at_start": self._load},
            "versions": _versions(),
        }

    def _record(
        self, claims: Sequence[Claim], samples: Mapping[str, Any], results: Mapping[str, Any]
    ) -> dict[str, Any]:
        return {
            "claims": [asdict(claim) for claim in claims],
            **self.provenance(),
            **results,
            "samples": samples,
        }


def write_whole(path: Path, text: str) -> None:
    """Replace `path` by `text` in one step: whoever is killed meanwhile leaves the old or the new
    file, never a part of one."""
    unfinished = path.with_name(f".{path.name}.part")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(path)


def percentiles(values: Sequence[float] | np.ndarray, digits: int = 1) -> dict[str, float]:
    """Median, 90th and 99th percentile and mean of `values` (at least one)."""
    p50, p90, p99 = np.percentile(values, (50, 90, 99))
    named = {"p50": p50, "p90": p90, "p99": p99, "mean": np.mean(values)}
    return {name: round(float(value), digits) for name, value in named.items()}


def _command(argv: Sequence[str]) -> str:
    script = os.path.relpath(sys.argv[0], ROOT)
    return shlex.join(("python", script, *argv))


def _git(*arguments: str) -> str | None:
    """What git prints; None without git or outside a checkout."""
    try:
        done = subprocess.run(
            ("git", *arguments), cwd=ROOT, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.rstrip()


def source() -> dict[str, Any]:
    """The commit that runs, and which of its files differ.

    In a copy of the tree without its git folder: what `MUXCLUSTER_COMMIT` says.
    """
    changed = _git("status", "--porcelain", "--untracked-files=no") or ""
    return {
        "commit": _git("rev-parse", "HEAD") or os.environ.get(COMMIT_VARIABLE),
        "changed_files": [line[3:] for line in changed.splitlines()],
    }


def _machine() -> dict[str, Any]:
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count(),
        "system": platform.system(),
    }


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if "model name" in line), "")


def _versions() -> dict[str, str]:
    """Python and those of the usual packages that the bench imported."""
    loaded = {name: sys.modules[name] for name in _PACKAGES if name in sys.modules}
    versions = {name: str(getattr(module, "__version__", "")) for name, module in loaded.items()}
    return {"python": platform.python_version(), **versions}


def record_text(record: Mapping[str, Any]) -> str:
    """JSON with one line a key, and a line an entry of the large ones."""
    parts = []
    for key, value in record.items():
        text = json.dumps(value)
        if isinstance(value, dict) and len(text) > 200:
            rows = ",\n  ".join(f"{json.dumps(str(k))}: {json.dumps(v)}" for k, v in value.items())
            text = f"{{\n  {rows}\n }}"
        elif isinstance(value, list) and len(text) > 200:
            text = "[\n  " + ",\n  ".join(map(json.dumps, value)) + "\n ]"
        parts.append(f" {json.dumps(key)}: {text}")
    return "{\n" + ",\n".join(parts) + "\n}\n"
