"""Every kernel on a GPU: correctness, then speed, against the GPU's limits and other kernels.

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
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from time import monotonic
from typing import Any

import torch

if __name__ == "__main__":
    sys.path.pop(0)  # the script's folder, whose kernels.py would hide the package
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from bench.gpu.kernel_cases.claims import claims
from bench.gpu.kernel_cases.part import PARTS
from bench.gpu.running.card import card_of
from bench.gpu.running.ceilings import measure
from bench.gpu.running.clock import Clock
from bench.gpu.running.found import Found
from bench.gpu.running.isolated import Group, run_group
from bench.gpu.running.progress import Progress, parts_parser
from bench.gpu.running.run import line
from bench.harness import Bench, Claim

SCRIPT = Path(__file__).resolve().parent / "kernel_cases" / "part.py"
# A correctness part has so long: some thirty compilations each, all parts at once.
CORRECT_S = 150.0
SPEED_S = 90.0
DRY_S = 400.0
IN_ALL_S = 450.0  # No speed part runs beyond this, so that one call takes less than eight minutes


def main(argv: Sequence[str] | None = None) -> int:
    """Run all parts and publish; 1 where something is wrong."""
    bench = Bench(_parser(), argv)
    options = bench.options
    if options.device == "cuda" and not torch.cuda.is_available():
        print("no GPU: nothing was run (--device cpu tries the scripts out)", file=sys.stderr)
        return 1
    ends_at = monotonic() + (options.budget or IN_ALL_S)
    tiny = options.device == "cpu"
    repeats = 2 if tiny else 10 if options.quick else 30
    device = torch.device(options.device)
    card = card_of(device)
    setting = {"bench": "kernels", "dry": tiny, "card": card["name"]}
    progress = Progress(bench, list(PARTS), setting, claims_of)
    left = progress.left(_wanted(options.only))
    torch.manual_seed(options.seed)
    ceilings, timings = measure(Clock(device, repeats), device, tiny=tiny)
    print(f"{card['name']}: copy {ceilings.copy_bytes_per_s / 1e12:.3f} TB/s, ", end="")
    print(f"bf16 matmul {ceilings.matmul_flops_per_s / 1e12:.1f} TFLOP/s", flush=True)
    progress.sample(**{name: timing.samples_s for name, timing in timings.items()})
    progress.about = {"card": card, "ceilings": asdict(ceilings)}
    if not tiny:
        torch.cuda.empty_cache()
    shared = {
        "device": options.device,
        "seed": options.seed,
        "repeats": repeats,
        "ceilings": asdict(ceilings),
        "tiny": tiny,
    }
    _run_parts(left, shared, ends_at, progress)
    print("\n" + "\n".join(line(row) for row in progress.found.rows))
    return progress.publish()


def _parser() -> argparse.ArgumentParser:
    parser = parts_parser((__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument(
        "--dry", action="store_const", const="cpu", dest="device", help="the same as --device cpu"
    )
    kinds = ("correct", "speed")
    parser.add_argument(
        "--only",
        nargs="+",
        metavar="PART",
        choices=(*kinds, *PARTS),
        help="parts, or all of a kind",
    )
    return parser


def claims_of(found: Found, setting: Mapping[str, Any]) -> list[Claim]:
    """No speed is claimed of the CPU twins at tiny shapes."""
    return claims(found.checks, [] if setting["dry"] else found.rows)


def _wanted(only: Sequence[str] | None) -> list[str]:
    """The parts that were asked for, by name or kind, in their order; None: all."""
    kinds = {name: name.partition(".")[0] for name in PARTS}
    return [name for name in PARTS if only is None or name in only or kinds[name] in only]


def _run_parts(
    names: list[str], shared: dict[str, Any], ends_at: float, progress: Progress
) -> None:
    """First what is right, side by side, then times, one by one."""
    right = tuple(name for name in names if name.startswith("correct."))
    fast = tuple(name for name in names if name.startswith("speed."))
    if shared["tiny"]:
        # Starting a process takes longer than most parts do.
        first, second = [Group(right, DRY_S)], [Group(fast, DRY_S)]
    else:
        first = [Group((name,), CORRECT_S) for name in right]
        second = [Group((name,), SPEED_S) for name in fast]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        running = [
            pool.submit(run_group, SCRIPT, group, shared, ends_at) for group in first if group.names
        ]
        for each in as_completed(running):
            progress.add(each.result())
    for group in second:
        if group.names:
            progress.add(run_group(SCRIPT, group, shared, ends_at))


if __name__ == "__main__":
    sys.exit(main())
