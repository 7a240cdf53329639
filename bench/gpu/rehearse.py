"""Rehearsal of the three calls without a GPU: timed, and one killed after a minute.

Each call runs dry (on the CPU, tiny models) as it would run there. Then call A is killed without
warning, what it left behind is read, and it goes on from that. No GPU figure comes of it: what is
shown is that calls end within their limit, and that a killed one loses only the part that ran.

    python bench/gpu/rehearse.py --json bench/results/lease_rehearsal.json
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from time import monotonic, sleep
from typing import Any

if __name__ == "__main__":
    sys.path.pop(0)  # the script's folder, whose kernels.py would hide the package
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from bench.gpu.lease import CALL_LIMIT_S, CALLS, FILE_BYTES, FILES
from bench.gpu.running.found import OK
from bench.harness import Bench, Claim, make_parser

SCRIPT = Path(__file__).resolve().parent / "lease.sh"
KILL_AFTER_S, QUICK_KILL_AFTER_S = 60.0, 25.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the calls, kill one, publish; 1 where a call took too long or a record was lost."""
    parser = make_parser((__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", metavar="CALL", choices=(*CALLS, "kill"))
    bench = Bench(parser, argv)
    wanted = bench.options.only or (("A", "kill") if bench.options.quick else (*CALLS, "kill"))
    rows: list[dict[str, Any]] = []
    samples: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="rehearse-") as folder:
        for call in wanted:
            if call == "kill":
                after_s = QUICK_KILL_AFTER_S if bench.options.quick else KILL_AFTER_S
                rows.append(_killed(Path(folder), after_s))
                continue
            rows.append(_called(call, Path(folder) / call))
            samples |= {f"call {call}, {name}": [s] for name, s in rows[-1]["seconds"].items()}
            bench.save(_claims(rows), samples, finished=False, rows=rows)
    bench.publish(_claims(rows), samples, finished=True, rows=rows)
    return 0 if all(row["is_right"] for row in rows) else 1


def _started(call: str, out: Path, *options: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "OUT": str(out), "PYTHON": sys.executable}
    return subprocess.Popen(("bash", str(SCRIPT), call, "--dry", *options), env=environment)


def _called(call: str, out: Path, *options: str) -> dict[str, Any]:
    """A call from its start to its end, with what it left behind."""
    start_s = monotonic()
    code = _started(call, out, *options).wait()
    took_s = monotonic() - start_s
    parts = {f"{n} {p}": s for n, record in _records(out).items() for p, s in _parts(record)}
    files = [path.stat().st_size for path in out.rglob("*") if path.is_file()]
    is_small = len(files) <= FILES and max(files, default=0) <= FILE_BYTES
    return {
        "case": f"call {call}",
        "exit_code": code,
        "wall_s": round(took_s, 1),
        "parts": len(parts),
        "parts_ok": sum(summary["verdict"] == OK for summary in parts.values()),
        "not_ok": {
            name: f"{summary['verdict']}: {summary['reason']}"[:300]
            for name, summary in parts.items()
            if summary["verdict"] != OK
        },
        "seconds": {name: summary["seconds"] for name, summary in parts.items()},
        "files": len(files),
        "bytes": sum(files),
        "is_right": code == 0 and took_s <= CALL_LIMIT_S and is_small,
    }


def _killed(folder: Path, after_s: float) -> dict[str, Any]:
    """Call A, killed without warning, read, and gone on from."""
    first, again = folder / "killed", folder / "again"
    process = _started("A", first)
    sleep(after_s)
    process.send_signal(signal.SIGKILL)
    process.wait()
    kept = _records(first)
    before = {(name, part) for name, record in kept.items() for part, _ in _parts(record, OK)}
    row = _called("A", again, "--from", str(first))
    repeated = {
        (name, part)
        for name, record in _records(again).items()
        for part, summary in _parts(record)
        if (name, part) in before and summary["run"] >= len(kept[name]["runs"])
    }
    return {
        **row,
        "case": f"call A killed after {after_s:.0f} s, then again",
        "parts_kept": len(before),
        "unfinished_records": [name for name, record in kept.items() if not record["finished"]],
        "parts_repeated": len(repeated),
        "is_right": row["is_right"] and bool(before) and not repeated,
    }


def _records(out: Path) -> dict[str, dict[str, Any]]:
    """The records of benches in a folder. Raises ValueError where one is no whole JSON."""
    found = {path.stem: json.loads(path.read_text("utf-8")) for path in sorted(out.glob("*.json"))}
    return {name: record for name, record in found.items() if not name.startswith("lease_")}


def _parts(record: dict[str, Any], verdict: str | None = None) -> list[tuple[str, dict[str, Any]]]:
    parts = record["parts"].items()
    return [(name, each) for name, each in parts if verdict in (None, each["verdict"])]


def _claims(rows: Sequence[dict[str, Any]]) -> list[Claim]:
    made = []
    for row in rows:
        name = "killed_call" if "parts_kept" in row else row["case"].replace(" ", "_")
        made.append(Claim(f"dry_{name}_s", row["wall_s"], "s", CALL_LIMIT_S))
        made.append(Claim(f"dry_{name}_parts_ok", row["parts_ok"], "parts", row["parts"]))
        if "parts_kept" in row:
            made.append(Claim("parts_kept_by_a_killed_call", row["parts_kept"], "parts"))
            made.append(Claim("parts_repeated_after_a_kill", row["parts_repeated"], "parts", 0))
    return made


if __name__ == "__main__":
    sys.exit(main())
