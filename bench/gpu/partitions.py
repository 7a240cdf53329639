"""SM partitions end to end: does each one run, are its shares real, are its tokens the same?

Needs torch, triton, numpy and transformers, and msgspec for `mps`, whose workers are processes.
Two small random models in fp32; for each of `none`, `green` and `mps` a unit with a prefill and a
decode worker at two SM shares each runs the same jobs, prefills beside decodes. Starting verifies
the shares with a probe kernel; tokens must be those of `none`. The MPS daemon is our own, and no
setting of the card is touched. Each partition has a process and a time limit of its own. Exit code
1 where tokens differ; a partition that the machine does not have is reported with its reason.

    python bench/gpu/partitions.py --json bench/results/gpu/partitions.json
    python bench/gpu/partitions.py --dry  # on the CPU: memory files for IPC, threads for SMs
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import Any

import torch

if __name__ == "__main__":
    sys.path.pop(0)  # the script's folder, whose kernels.py would hide the package
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from bench.gpu.partition_runs.jobs import write_models
from bench.gpu.running.card import card_of
from bench.gpu.running.children import run_child
from bench.gpu.running.found import FAILED, NO_TIME, NO_TIME_LEFT, OK, WRONG, Found, Part
from bench.gpu.running.progress import Progress, parts_parser
from bench.harness import Bench, Claim

SCRIPT = str(Path(__file__).resolve().parent / "partition_runs" / "part.py")
# Green contexts and processes take longest to start: every rung records its own graphs.
LIMITS_S: Mapping[str, float] = {"none": 60.0, "green": 120.0, "mps": 180.0}
_DRY_TIMES = 4  # A busy machine without a GPU may take so many times as long
IN_ALL_S = 455.0
_LEAST_S = 20.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run each partition, say what it did, publish; 1 where tokens differ."""
    bench = Bench(_parser(), argv)
    options = bench.options
    dry = options.dry
    if not dry and not torch.cuda.is_available():
        print("no GPU: nothing was run (--dry tries the script out)", file=sys.stderr)
        return 1
    times = _DRY_TIMES if dry else 1
    ends_at = monotonic() + (options.budget or times * IN_ALL_S)
    device = "cpu" if dry else "cuda:0"
    card = card_of(torch.device(device))
    setting = {"bench": "partitions", "dry": dry, "card": card["name"]}
    progress = Progress(bench, tuple(LIMITS_S), setting, claims_of)
    progress.about = {"card": card}
    asked = [name for name in LIMITS_S if name in (options.only or LIMITS_S)]
    with tempfile.TemporaryDirectory(prefix="bench-gpu-") as folder:
        left = progress.left(asked)
        if left:
            write_models(Path(folder))
        for name in left:
            limit_s = min(times * LIMITS_S[name], ends_at - monotonic())
            reference = _reference(progress.found)
            progress.add(_found(name, (Path(folder), device, limit_s), reference))
    progress.publish()
    return 1 if any(part.verdict == WRONG for part in progress.found.parts.values()) else 0


def _parser() -> argparse.ArgumentParser:
    parser = parts_parser((__doc__ or "").splitlines()[0])
    parser.add_argument("--dry", action="store_true", help="try the script out on the CPU")
    parser.add_argument("--only", nargs="+", metavar="PARTITION", choices=tuple(LIMITS_S))
    return parser


def _reference(found: Found) -> Mapping[str, Any]:
    """What partition none did, if it did."""
    rows = [row for row in found.rows if row["case"] == "none"]
    return rows[0] if rows else {"failure": "not run"}


def _found(name: str, how: tuple[Path, str, float], reference: Mapping[str, Any]) -> Found:
    """The partition as a part of one row. how: models' folder, device, limit in seconds."""
    folder, device, limit_s = how
    if limit_s < _LEAST_S:
        return Found({name: Part(name, NO_TIME, reason=NO_TIME_LEFT)})
    start_s = monotonic()
    row = {"case": name, **_outcome(name, folder, device, limit_s)}
    seen = verdict(row, row if name == "none" else reference)
    print(f"{name}: {seen}", flush=True)
    row["verdict"] = seen
    failure = row.get("failure", "")
    ends = WRONG if "DIFFER" in seen else FAILED if failure else OK
    reason = seen if ends == WRONG else failure
    return Found({name: Part(name, ends, monotonic() - start_s, reason, rows=(row,))})


def _outcome(name: str, folder: Path, device: str, limit_s: float) -> dict[str, Any]:
    ended = run_child((SCRIPT, name, str(folder), device), limit_s)
    print(ended.errors, end="", file=sys.stderr, flush=True)
    if ended.failure:
        return {"failure": " ".join(ended.failure.split())[-600:]}
    found: dict[str, Any] = json.loads(ended.output.splitlines()[-1])
    return found


def verdict(found: Mapping[str, Any], reference: Mapping[str, Any]) -> str:
    """In words: tokens against those of partition none, and what was seen of the shares."""
    if "failure" in found:
        return f"not run: {found['failure']}"
    if "failure" in reference:
        return "ran, with nothing to compare it with"
    took = f"started in {found['start_s']:.1f} s, jobs took {found['jobs_s']:.2f} s"
    if found is reference:
        return f"the reference; {took}"
    same = found["tokens"] == reference["tokens"]
    seen = "; ".join(found["seen"])
    seen = f"multiprocessors seen: {seen}" if seen else "nothing is confined here"
    return f"{'tokens equal' if same else 'tokens DIFFER'}; {seen}; {took}"


def claims_of(found: Found, setting: Mapping[str, Any]) -> list[Claim]:
    """How many partitions gave the tokens of none; nothing is said of a CPU."""
    if setting["dry"]:
        return []
    expected = _reference(found).get("tokens")
    tokens = [row.get("tokens") for row in found.rows if row["case"] in ("green", "mps")]
    equal = sum(each is not None and each == expected for each in tokens)
    return [Claim("partitions_with_equal_tokens", equal, "partitions", 2)]


if __name__ == "__main__":
    sys.exit(main())
