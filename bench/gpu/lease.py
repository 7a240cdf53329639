"""One call on a lent GPU: several benches within seven minutes, the most valuable first.

Run by bench/gpu/lease.sh, which sets the environment. Each bench rewrites its record in the
out-folder after every part, so that a call that is cut off loses only the part that ran. Started
again with the records of an earlier try (--from), a call runs only what is left. Prints a line a
part, and at the end what is not ok, the claims and the files. Exit code 1 only where no part at
all was measured.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

if __name__ == "__main__":
    sys.path.pop(0)  # the script's folder, whose kernels.py would hide the package
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from bench.gpu.running.children import end_on_terminate, run_logged
from bench.gpu.running.found import OK, SKIPPED
from bench.harness import Bench, Claim, make_parser, write_whole

HERE = Path(__file__).resolve().parent
# A call is to end within 420 s; the rest is for ending processes and writing the summary.
CALL_S = 400.0
CALL_LIMIT_S = 420.0
# Of a step, kept for ending a part that hangs: what it had measured must still be taken in.
_CLEAN_UP_S = 10.0
_GRACE_S = 12.0  # A bench ends by itself; this much after its time it is ended
_LEAST_S = 25.0
FILES, FILE_BYTES = 8, 16 << 20  # What comes back of an out-folder
_LOG_BYTES = 8 << 20
# As bench/gpu/facts.py has them; importing it would load torch.
DRY_FACTS = ("versions", "ceilings", "ipc", "ranks_nccl")
# Lines a kind in the summary, and characters of each: it is to fit on a screen.
_SHOWN, _SHOWN_CHARACTERS = 12, 150
_CHECK_GPU = (
    "import sys, torch; there = torch.cuda.is_available(); "
    "print('torch', torch.__version__, torch.cuda.get_device_name(0) if there else 'no GPU'); "
    "sys.exit(not there)"
)


@dataclass(frozen=True, slots=True)
class Step:
    """A bench, or some parts of one."""

    bench: str
    seconds: float  # most of the call that it may take
    parts: tuple[str, ...] = ()  # options after `--only`; none: all that the bench has


# Right before fast in every call. Usual times are half of these limits or less; the last steps take
# what time is left, and a second try of the call goes on there.
CALLS: Mapping[str, tuple[Step, ...]] = {
    "A": (
        Step("facts", 50.0, ("versions", "ceilings", "graph")),
        Step("kernels", 160.0, ("correct",)),
        Step("facts", 130.0, ("ipc", "green_contexts", "mps")),
        Step("kernels", 200.0, ("speed",)),
        Step("facts", CALL_S, ("ranks_nccl", "ranks_gloo")),
    ),
    "B": (
        Step("engine", 110.0, ("equal", "equal.stock")),
        Step("partitions", 220.0),
        Step("engine", CALL_S),
    ),
    "C": (Step("multiplex", CALL_S),),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the steps of a call and say what came of them; 1 where nothing was measured."""
    parser = make_parser((__doc__ or "").splitlines()[0])
    parser.add_argument("call", choices=tuple(CALLS), help="which of the three calls")
    parser.add_argument("--out", type=Path, required=True, help="folder of the records")
    parser.add_argument("--dry", action="store_true", help="on the CPU, tiny models, no claims")
    parser.add_argument(
        "--from",
        dest="earlier",
        type=Path,
        default=Path("build/returned"),
        metavar="DIR",
        help="records of an earlier try to go on from, if there are any (build/returned)",
    )
    options = parser.parse_args(argv)
    start_s = monotonic()
    end_on_terminate()
    if not options.dry and not _has_gpu():
        print("no GPU: nothing was run (--dry tries the call out)", file=sys.stderr)
        return 1
    options.out.mkdir(parents=True, exist_ok=True)
    _take_over(options)
    arguments = [*(sys.argv[1:] if argv is None else argv)]
    own = options.out / f"lease_{options.call}.json"
    bench = Bench(parser, [*arguments, "--json", str(own)])
    steps: list[dict[str, Any]] = []
    for step in CALLS[options.call]:
        steps.append(_run(step, options, start_s + CALL_S))
        # The call's own record so far.
        bench.save((), _seconds(options), call=options.call, finished=False, steps=steps)
    return _end(bench, options, steps, start_s)


def _has_gpu() -> bool:
    """Also prints which, and torch's version."""
    done = subprocess.run(
        (sys.executable, "-c", _CHECK_GPU), capture_output=True, text=True, check=False
    )
    print(done.stdout.strip() or done.stderr.strip()[-500:], flush=True)
    return done.returncode == 0


def _take_over(options: Any) -> None:
    """Copy the records of an earlier try to the out-folder, where none are yet."""
    for name in sorted({step.bench for step in CALLS[options.call]}):
        source, target = (folder / f"{name}.json" for folder in (options.earlier, options.out))
        if source.exists() and not target.exists():
            shutil.copyfile(source, target)
            print(f"goes on from {source}", flush=True)


def _run(step: Step, options: Any, ends_at: float) -> dict[str, Any]:
    """Run a bench within its time; what is known of the run."""
    seconds = min(step.seconds, ends_at - monotonic())
    record = options.out / f"{step.bench}.json"
    command = [str(HERE / f"{step.bench}.py"), "--resume", "--json", str(record)]
    command += ["--budget", f"{seconds - _CLEAN_UP_S:.0f}"]
    if step.bench == "facts":
        command += ["--markdown", str(options.out / "FACTS.md")]
    command += ["--dry"] * options.dry + ["--quick"] * options.quick
    parts = _parts(step, dry=options.dry)
    if step.parts:
        command += ["--only", *parts]
    known: dict[str, Any] = {"bench": step.bench, "parts": list(parts)}
    if seconds < _LEAST_S:
        print(f"-- {step.bench} {' '.join(parts)}: no time left", flush=True)
        return {**known, "ended": "no time left", "seconds": 0.0}
    if step.parts and not parts:
        return {**known, "ended": "nothing to try on a CPU", "seconds": 0.0}
    print(f"-- {step.bench} {' '.join(parts)}: at most {seconds:.0f} s", flush=True)
    start_s = monotonic()
    code = run_logged(command, seconds + _GRACE_S, _log_of(options), _show)
    ended = f"exit code {code}" if code is not None else f"ended after {seconds + _GRACE_S:.0f} s"
    return {**known, "ended": ended, "seconds": round(monotonic() - start_s, 1)}


def _parts(step: Step, *, dry: bool) -> tuple[str, ...]:
    """Those of the step that there are: a dry run has no facts of a GPU."""
    if not (dry and step.bench == "facts"):
        return step.parts
    return tuple(part for part in step.parts if part in DRY_FACTS)


def _show(line: str) -> None:
    if line.startswith(("part ", "WRONG ", "done in an earlier run", "not gone on")):
        print(f"   {line}", flush=True)


def _log_of(options: Any) -> Path:
    log: Path = options.out / f"lease_{options.call}.log"
    return log


def _records(options: Any) -> dict[str, dict[str, Any]]:
    """Of the call's benches, as far as they are there, by bench."""
    found = {}
    for name in dict.fromkeys(step.bench for step in CALLS[options.call]):
        path = options.out / f"{name}.json"
        if path.exists():
            found[name] = json.loads(path.read_text(encoding="utf-8"))
    return found


def _seconds(options: Any) -> dict[str, list[float]]:
    """Seconds of each part that was measured in this call, by bench and part."""
    return {
        f"{name} {part}": [summary["seconds"]]
        for name, record in _records(options).items()
        for part, summary in record["parts"].items()
        if summary["run"] == len(record["runs"]) - 1
    }


def _end(bench: Bench, options: Any, steps: Sequence[Mapping[str, Any]], start_s: float) -> int:
    """Print what is not ok, the claims and the files; write the call's record."""
    records = _records(options)
    parts = {
        f"{name} {part}": summary
        for name, record in records.items()
        for part, summary in record["parts"].items()
    }
    num_ok = sum(summary["verdict"] == OK for summary in parts.values())
    print(f"\n== call {options.call}: {num_ok} of {len(parts)} parts ok", flush=True)
    bad = [f"{name}: {_why(each)}" for name, each in parts.items() if each["verdict"] != OK]
    _list("not ok", bad)
    wrong = [
        f"{name}: {' '.join(str(check[key]) for key in ('kernel', 'case') if key in check)}: "
        f"{check.get('failure', check.get('error'))}"
        for name, record in records.items()
        for check in record["checks"]
        if not check["ok"]
    ]
    _list("wrong results", wrong)
    missing = [f"{n}: {' '.join(r['missing'])}" for n, r in records.items() if r["missing"]]
    _list("not measured yet (the same line again goes on there)", missing)
    _cut(_log_of(options))
    took_s = monotonic() - start_s
    claims = [
        Claim(f"call_{options.call}_s", round(took_s, 1), "s", CALL_LIMIT_S),
        Claim(f"call_{options.call}_parts_ok", num_ok, "parts", len(parts)),
    ]
    said = [claim for record in records.values() for claim in record["claims"]]
    for claim in said:
        against = "" if claim["baseline"] is None else f" (against {claim['baseline']:g})"
        print(f"{claim['name']} = {claim['value']:g} {claim['unit']}{against}")
    bench.publish(
        claims,
        _seconds(options),
        call=options.call,
        finished=not missing,
        steps=list(steps),
        parts=parts,
    )
    _check_files(options.out)
    return 0 if any(each["verdict"] in (OK, SKIPPED) for each in parts.values()) else 1


def _why(summary: Mapping[str, Any]) -> str:
    reason = " ".join(summary["reason"].split())
    if len(reason) > _SHOWN_CHARACTERS:
        reason = f"... {reason[-_SHOWN_CHARACTERS:]}"
    return f"{summary['verdict']}: {reason}"


def _list(title: str, lines: Sequence[str]) -> None:
    if lines:
        print(f"{title}:")
        for line in lines[:_SHOWN]:
            print(f"   {line[: _SHOWN_CHARACTERS + 60]}")
        if len(lines) > _SHOWN:
            print(f"   and {len(lines) - _SHOWN} more, in the records")


def _cut(log: Path) -> None:
    """Leave the end of a log that is too long."""
    if log.exists() and log.stat().st_size > _LOG_BYTES:
        text = log.read_bytes()[-_LOG_BYTES:].decode("utf-8", errors="replace")
        write_whole(log, text)


def _check_files(out: Path) -> None:
    """Say which files there are, and which of them would not come back."""
    files = sorted(path for path in out.rglob("*") if path.is_file())
    named = (f"{path.name} {path.stat().st_size / 1024:.0f} KiB" for path in files)
    print(f"files in {out}: {', '.join(named)}")
    large = [path.name for path in files if path.stat().st_size > FILE_BYTES]
    if len(files) > FILES or large:
        print(f"TOO MUCH to come back: {len(files)} files (at most {FILES}); too large: {large}")


if __name__ == "__main__":
    sys.exit(main())
