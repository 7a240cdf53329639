"""Every kernel on a GPU: right first, then how fast, against the card and against others.

Needs torch, triton and numpy only. Correctness runs first, in processes side by side:
every public kernel in fp16 and bf16 against float64. Then each kernel's time, alone on the card,
in CUDA events with the L2 flushed before each repetition, as a share of the copy bandwidth or
matrix rate measured in the same run, and beside PyTorch's own operations (FlashInfer's where it
is installed). A kernel that fails, hangs or breaks its CUDA context costs only its own part.
Exit code 1 where a result was wrong or a part did not end well.

    python bench/gpu/kernels.py --json bench/results/gpu/kernels.json
    python bench/gpu/kernels.py --device cpu        # smoke: tiny shapes through the CPU twins
"""

import argparse
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from time import monotonic
from typing import Any

import torch

if __name__ == "__main__":
    sys.path.pop(0)  # the script's folder, whose kernels.py would hide the package
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from bench.gpu.card import card_of
from bench.gpu.ceilings import measure
from bench.gpu.claims import claims
from bench.gpu.clock import Clock
from bench.gpu.isolated import Found, Group, gathered, run_group
from bench.gpu.part import PARTS
from bench.gpu.run import line
from bench.harness import Bench, make_parser

SCRIPT = Path(__file__).resolve().parent / "part.py"
CORRECT_S = 150.0
"""A correctness part has so long: some thirty compilations each, all parts at once."""
SPEED_S = 90.0
IN_ALL_S = 450.0
"""No speed part runs beyond this, so that one call takes less than eight minutes."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run all parts and publish; 1 where something is wrong."""
    bench = Bench(_parser(), argv)
    if bench.options.device == "cuda" and not torch.cuda.is_available():
        print("no GPU: nothing was run (--device cpu tries the scripts out)", file=sys.stderr)
        return 1
    ends_at = monotonic() + IN_ALL_S
    tiny = bench.options.device == "cpu"
    repeats = 2 if tiny else 10 if bench.options.quick else 30
    device = torch.device(bench.options.device)
    torch.manual_seed(bench.options.seed)
    ceilings, timings = measure(Clock(device, repeats), device, tiny=tiny)
    card = card_of(device)
    print(f"{card['name']}: copy {ceilings.copy_bytes_per_s / 1e12:.3f} TB/s, ", end="")
    print(f"bf16 matmul {ceilings.matmul_flops_per_s / 1e12:.1f} TFLOP/s", flush=True)
    if not tiny:
        torch.cuda.empty_cache()
    shared = {
        "device": bench.options.device,
        "seed": bench.options.seed,
        "repeats": repeats,
        "ceilings": asdict(ceilings),
        "tiny": tiny,
    }
    found = _run_parts(bench.options.only or list(PARTS), shared, ends_at, together=tiny)
    found.samples |= {name: timing.samples_s for name, timing in timings.items()}
    return _publish(bench, found, {"card": card, "ceilings": asdict(ceilings)})


def _parser() -> argparse.ArgumentParser:
    parser = make_parser((__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--only", nargs="+", metavar="PART", choices=tuple(PARTS))
    return parser


def _run_parts(
    names: list[str], shared: dict[str, Any], ends_at: float, *, together: bool
) -> Found:
    """Of all parts: first what is right, side by side, then times, one by one."""
    right = tuple(name for name in names if name.startswith("correct."))
    fast = tuple(name for name in names if name.startswith("speed."))
    if together:
        first, second = [Group(right, CORRECT_S)], [Group(fast, CORRECT_S)]
    else:
        first = [Group((name,), CORRECT_S) for name in right]
        second = [Group((name,), SPEED_S) for name in fast]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        done = list(pool.map(lambda group: _run(group, shared, ends_at), filter(_any, first)))
    return gathered(done + [_run(group, shared, ends_at) for group in filter(_any, second)])


def _any(group: Group) -> bool:
    return bool(group.names)


def _run(group: Group, shared: dict[str, Any], ends_at: float) -> Found:
    return run_group(SCRIPT, group, shared, ends_at)


def _publish(bench: Bench, found: Found, about: dict[str, Any]) -> int:
    """The table once more, what went wrong, the claims and the record."""
    checks, rows, failures = found.checks, found.rows, found.failures
    print("\n" + "\n".join(line(row) for row in rows))
    for check in found.wrong:
        print(
            f"WRONG {check['kernel']} {check['case']}: {check.get('failure', check.get('error'))}"
        )
    for name, failure in failures.items():
        print(f"FAILED {name}: {failure}")
    # No speed is claimed of the CPU twins at tiny shapes.
    timed = rows if bench.options.device == "cuda" else []
    bench.publish(
        claims(checks, timed),
        found.samples,
        **about,
        rows=rows,
        checks=checks,
        failures=failures,
    )
    return 1 if found.wrong or failures else 0


if __name__ == "__main__":
    sys.exit(main())
