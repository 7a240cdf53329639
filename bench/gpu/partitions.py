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

import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

if __name__ == "__main__":
    sys.path.pop(0)  # the script's folder, whose kernels.py would hide the package
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from bench.gpu.children import run_child
from bench.gpu.partitions_jobs import write_models
from bench.harness import Bench, Claim, make_parser

SCRIPT = str(Path(__file__).resolve().parent / "partitions_part.py")
LIMITS_S: Mapping[str, float] = {"none": 60.0, "green": 90.0, "mps": 150.0}


def main(argv: Sequence[str] | None = None) -> int:
    """Run each partition, say what it did, publish; 1 where tokens differ."""
    parser = make_parser((__doc__ or "").splitlines()[0])
    parser.add_argument("--dry", action="store_true", help="try the script out on the CPU")
    bench = Bench(parser, argv)
    dry = bench.options.dry
    if not dry and not torch.cuda.is_available():
        print("no GPU: nothing was run (--dry tries the script out)", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="bench-gpu-") as folder:
        write_models(Path(folder))
        found = {
            name: _found(
                name, Path(folder), "cpu" if dry else "cuda:0", 4 * limit_s if dry else limit_s
            )
            for name, limit_s in LIMITS_S.items()
        }
    verdicts = {name: verdict(found[name], found["none"]) for name in found}
    for name, text in verdicts.items():
        print(f"{name}: {text}", flush=True)
    bench.publish([] if dry else _claims(found), {}, partitions=found, verdicts=verdicts, dry=dry)
    return 1 if any("DIFFER" in text for text in verdicts.values()) else 0


def _found(name: str, folder: Path, device: str, limit_s: float) -> dict[str, Any]:
    ended = run_child((SCRIPT, name, str(folder), device), limit_s)
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


def _claims(found: Mapping[str, Mapping[str, Any]]) -> list[Claim]:
    expected = found["none"].get("tokens")
    equal = [name for name in ("green", "mps") if found[name].get("tokens", 0) == expected]
    return [Claim("partitions_with_equal_tokens", len(equal), "partitions", 2)]


if __name__ == "__main__":
    sys.exit(main())
